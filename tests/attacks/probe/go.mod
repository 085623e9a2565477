module skerry/attacks/probe

go 1.22
