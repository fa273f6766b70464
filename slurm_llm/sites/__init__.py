"""Site profiles: what a cluster is, written once by its admin."""
