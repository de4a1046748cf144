"""clinics: a Flower app with one kind of differential privacy or another."""
