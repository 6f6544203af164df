"""LoRA adaptation of the encoders: low-rank updates and a linear head, trained on labelled images.

LoRA: Hu et al., arXiv:2106.09685. The updates are made, saved and merged by the library peft.
"""
