module skerry/tests/goclient

go 1.22
