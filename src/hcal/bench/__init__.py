"""TODO: described by its owner."""
