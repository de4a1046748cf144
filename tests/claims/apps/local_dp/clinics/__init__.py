"""clinics: a Flower app."""
