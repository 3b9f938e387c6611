"""`pagebind replay`: a continuous-batching loop over a trace, on real page tables and a virtual clock."""
