"""Other trainers behind the same door: an admitted split, our options and our records; see `trl`.

An engine gets rendered ids and masks and gives back weights; what a run is, what it may train on and what it leaves
behind is said here as in the loops.
"""
