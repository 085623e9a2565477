"""`make bench`: Skerry and its peers on one machine in one run. Ratios count; absolute times are the machine's."""
