"""From a trained network to something that a DLA runs, on any machine and without a DLA."""
