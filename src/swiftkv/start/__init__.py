"""Start values of the SwiftKV projections: copied from the teacher's weights, or fitted to its activations."""
