"""What reads, checks and shows reports, and the command line. It decides no verdict: `source.digest` leaves it out."""
