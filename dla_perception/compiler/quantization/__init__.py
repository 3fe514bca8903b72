"""INT8 scales: measured, read, written, translated from Q/DQ networks, and tried out on a CPU."""
