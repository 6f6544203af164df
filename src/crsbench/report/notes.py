"""What stands beside each study on the page: its title, where it belongs, what it does not say."""

from __future__ import annotations

from dataclasses import dataclass

THEMES = {
    "auroc": "AUROC against CRS",
    "sure": "How sure is a rank?",
    "calibration": "Calibration",
    "stress": "Degraded images",
    "labels": "Fewer labels",
    "elsewhere": "At another institution",
    "adapted": "Other depths, other training",
    "choices": "How much depends on design choices?",
    "floors": "Against a floor",
    "use": "In use",
    "more": "Further studies",
}
"""The page's sections of studies, in their order, with their headings."""


@dataclass(frozen=True)
class Note:
    """title: of the study; theme: a key of :data:`THEMES`; limit: what its figure does not say."""

    title: str
    theme: str
    limit: str


NOTES = {
    "rank_agreement": Note(
        "Two rankings of the same encoders",
        "auroc",
        "It describes this panel. Of a handful of encoders, one more or less moves every figure.",
    ),
    "movers": Note(
        "Who moves, and how far",
        "auroc",
        "A move of a place or two lies within what the seeds alone can do: look at the tiers.",
    ),
    "recalibration": Note(
        "Calibration repaired after the fact",
        "calibration",
        "Maps fitted on held-out images of the same source. Elsewhere they may not hold.",
    ),
    "recalibration_cases": Note(
        "How many labelled cases that takes",
        "calibration",
        "Each seed has one order of cases: the points of few cases are noisy.",
    ),
    "recalibration_under_stress": Note(
        "Does the repair hold on degraded and external images?",
        "stress",
        "A fall says that the repair was worth having, not that confidence can be trusted there.",
    ),
    "recalibration_on_target": Note(
        "Repaired with cases of the target's own",
        "elsewhere",
        "Half of the target's patients give the cases; each seed has one order of them.",
    ),
    "stress_calibration": Note(
        "Confident and wrong: calibration under stress",
        "stress",
        "Synthetic stress models acquisition, not population or pathology.",
    ),
    "label_efficiency": Note(
        "When fewer labels are enough",
        "labels",
        "No uncertainty enters the first fraction that reaches the baseline: near it, look at the "
        "error bars.",
    ),
    "axis_redundancy": Note(
        "Is the label axis a copy of AUROC?",
        "labels",
        "Retention is what is kept, not how good it is. It rewards having little to lose.",
    ),
    "institutional_shift": Note(
        "From home to another hospital",
        "elsewhere",
        "The sample of Welch's test are encoders that share data and designs; its p-value is "
        "descriptive. Few real shifts were tried, in the published panel one.",
    ),
    "external_validity": Note(
        "Does the score predict the AUROC at another hospital?",
        "elsewhere",
        "The CRS sums up a bench. In the published study plain AUROC predicted_ranking better.",
    ),
    "leave_one_dataset_out": Note(
        "Does the score carry over to another data set?",
        "elsewhere",
        "A correlation over a few encoders; with three of them it is hardly more than a coin.",
    ),
    "depth_sweep": Note(
        "Which block's features are best",
        "adapted",
        "The best depth is picked on the test images that it is reported on.",
    ),
    "adaptation": Note(
        "Frozen against adapted",
        "adapted",
        "One recipe of adaptation. Frozen rankings do not survive adaptation unchanged.",
    ),
    "adaptation_axes": Note(
        "All four axes after adaptation",
        "adapted",
        "One recipe of adaptation, with few seeds. The bench's other choices stay as they are.",
    ),
    "reference_invariance": Note(
        "Do newcomers move published scores?",
        "choices",
        "That a score stays put makes it comparable, not right.",
    ),
    "weight_sensitivity": Note(
        "Every choice of weights",
        "choices",
        "The weights are design choices, not clinical utilities; a share of the triangle is no "
        "probability.",
    ),
    "anchor_sensitivity": Note(
        "Other anchors",
        "choices",
        "It says how much depends on the anchors, not which are right.",
    ),
    "control_probes": Note(
        "Other classifiers on the same features",
        "choices",
        "Two other simple probes. A fine-tuned network may rank otherwise.",
    ),
    "floors": Note(
        "Better than an untrained network?",
        "floors",
        "Being above a floor is the least that can be asked for, axis by axis.",
    ),
    "floor_scores": Note(
        "How a floor comes by its score",
        "floors",
        "Floors lose little and promise little, so a CRS near theirs deserves no trust.",
    ),
    "subgroups": Note(
        "By sex, age and other subgroups",
        "use",
        "Small subgroups have wide intervals. Dark skin is under-represented in ISIC 2019, and no "
        "subgroup of too few images is shown.",
    ),
    "subgroup_gaps": Note(
        "Gaps between subgroups, beside those of chance",
        "use",
        "That no gap was found does not mean that there is none: small groups hide large gaps.",
    ),
    "equity": Note(
        "Equity as a fifth axis, outside the score",
        "use",
        "Equal performance of these groups is not fairness of the care that follows.",
    ),
    "net_benefit": Note(
        "Net benefit by threshold",
        "use",
        "The threshold stands for a trade of harms that only a clinic can name.",
    ),
    "operating_points": Note(
        "At a fixed operating point",
        "use",
        "Thresholds chosen on this bench's images. A clinic has its own prevalence and costs.",
    ),
    "risk_coverage": Note(
        "Risk by share of the cases that are answered",
        "use",
        "What happens to the cases that are handed back is not part of the figure.",
    ),
    "conformal_sets": Note(
        "Sets of answers with a promised coverage",
        "use",
        "The promise holds on average over cases like those of the calibration set, not for each "
        "class and not at another hospital.",
    ),
    "shift_detection": Note(
        "Can a shift be noticed from the features alone?",
        "elsewhere",
        "A shift that the features show need not cost anything, and one that costs need not show.",
    ),
    "target_predictors": Note(
        "What predicts the AUROC at another hospital?",
        "elsewhere",
        "Many predictors, few encoders: the best of them is partly best by chance.",
    ),
    "selective_prediction": Note(
        "When the model may abstain",
        "use",
        "What happens to the cases that are handed back is not part of the figure.",
    ),
}


def note_of(study: str) -> Note:
    """The note of a study; one that has none here goes last, under its own name."""
    title = study.replace("_", " ").capitalize()
    limit = "See docs/studies.md for what this study leaves open."
    return NOTES.get(study, Note(title, "more", limit))
