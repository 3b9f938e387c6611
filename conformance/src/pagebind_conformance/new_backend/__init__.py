"""`pagebind conformance new-backend`: a distribution to start a backend from, passing the core as it is written."""
