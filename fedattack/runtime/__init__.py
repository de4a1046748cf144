"""What a Flower app runs on: Ray on this machine, processes on this machine, or a federation that is up."""
