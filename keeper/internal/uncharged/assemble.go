package uncharged

import "syscall"

// rule is the action for a system call whose arguments pass all checks. The first rule that fits decides.
type rule struct {
	call   uint32
	checks []check
	action uint32
}

// check compares the low half of an argument, which is all that the kernel uses of those checked here.
type check struct {
	argument uint32
	mask     uint32 // 0: all bits
	equal    uint32
}

const (
	notify  = 0x7fc00000
	allow   = 0x7fff0000
	invalid = 0x00050000 | uint32(syscall.EINVAL)
)

// assemble makes the program of a filter, which allows all that no rule names.
func assemble(rules []rule) []syscall.SockFilter {
	const (
		load       = syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS
		equal      = syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K
		and        = syscall.BPF_ALU | syscall.BPF_AND | syscall.BPF_K
		ret        = syscall.BPF_RET | syscall.BPF_K
		number     = 0 // offsets in seccomp_data, on little-endian machines
		arguments  = 16
		sizeOfEach = 8
	)
	var program []syscall.SockFilter
	for _, r := range rules {
		body := []syscall.SockFilter{}
		for _, c := range r.checks {
			body = append(body, syscall.SockFilter{Code: load, K: arguments + sizeOfEach*c.argument})
			if c.mask != 0 {
				body = append(body, syscall.SockFilter{Code: and, K: c.mask})
			}
			body = append(body, syscall.SockFilter{Code: equal, K: c.equal})
		}
		body = append(body, syscall.SockFilter{Code: ret, K: r.action})
		for i := range body {
			if body[i].Code == equal {
				body[i].Jf = uint8(len(body) - i - 1) // to the next rule
			}
		}
		program = append(program,
			syscall.SockFilter{Code: load, K: number},
			syscall.SockFilter{Code: equal, K: r.call, Jf: uint8(len(body))})
		program = append(program, body...)
	}
	return append(program, syscall.SockFilter{Code: ret, K: allow})
}
