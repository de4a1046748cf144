"""Many runs held beside each other: reproductions of papers, trade-offs of defences, and what-ifs of one record."""
