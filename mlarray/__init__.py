"""Medical and scientific volumes stored for training."""
