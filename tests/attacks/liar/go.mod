module skerry/attacks/liar

go 1.22
