"""What every room may use and what knows nothing of federated learning: errors, files, untrusted input, the machine."""
