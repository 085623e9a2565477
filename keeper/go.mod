module skerry/keeper

go 1.25
