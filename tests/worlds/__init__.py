"""Small worlds that tests and benchmarks share: panels, cells, studies, a one-node cluster."""
