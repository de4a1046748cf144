"""Small federations, and what stands in for Flower, that several tests share."""
