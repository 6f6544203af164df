"""Images: decoding to the canonical image, and the perturbations that act on it."""
