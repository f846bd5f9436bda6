"""What was recorded, for people and for other programs: a page, a data card, and the formats that catalogues read.

find       which record a reference names: an admission, a stage or a run
story      what is told of it, gathered from the record, its decisions and the rows (plain data, no markup)
page       the story as one self-contained HTML page: no network, every text escaped, of bounded size
card       the story as Markdown; of an admission the data card of a Hugging Face data set
croissant, attestation   an admission as Croissant and as an in-toto statement
"""
