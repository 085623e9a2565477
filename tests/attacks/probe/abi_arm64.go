package main

import "syscall"

func rawClone(flags uintptr) (pid uintptr, errno syscall.Errno)

func abiCalls() map[string]call { return nil }
