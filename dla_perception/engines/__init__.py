"""Run a compiled network: one file per runtime, behind one protocol."""
