package sudo

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
)

const drainTime = 200 * time.Millisecond

// relay is a terminal for the command, connected to the client's own. A shell must control its terminal, and the caller
// already controls the client's.
type relay struct {
	outer  *os.File // the client's end of the command's terminal
	inner  int      // the end for the command's stdio; kept open here too, so that the terminal does not end early
	before syscall.Termios
	shown  chan struct{} // closed when all output has been shown
}

// newRelay makes a relay if all of stdio is one terminal and the client is in its foreground; nil: the command gets the
// client's stdio.
func newRelay() *relay {
	for fd := range 3 {
		if _, err := linux.Settings(fd); err != nil {
			return nil
		}
	}
	before, err := linux.Settings(0)
	size, noSize := linux.SizeOf(0)
	if err != nil || noSize != nil || !linux.InForeground(0) {
		return nil
	}
	outer, inner, err := linux.OpenTerminal(uint32(os.Getuid()), size)
	if err != nil {
		return nil
	}
	_ = linux.Set(inner, before)
	return &relay{os.NewFile(uintptr(outer), "terminal"), inner, before, make(chan struct{})}
}

// stdio returns the command's stdio.
func (r *relay) stdio() []int { return []int{r.inner, r.inner, r.inner} }

// begin copies bytes and sizes, once the command has its terminal.
func (r *relay) begin() {
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	_ = linux.Set(0, linux.Raw(r.before))
	go func() {
		_, _ = io.Copy(os.Stdout, onlyRead{r.outer}) // ends with EIO
		close(r.shown)
	}()
	go func() { _, _ = io.Copy(onlyWrite{r.outer}, os.Stdin) }()
	go r.follow(sizes)
}

func (r *relay) follow(sizes <-chan os.Signal) {
	raw, err := r.outer.SyscallConn()
	for range sizes {
		if size, none := linux.SizeOf(0); none == nil && err == nil {
			_ = raw.Control(func(fd uintptr) { _ = linux.Resize(int(fd), size) })
		}
	}
}

// end shows the last output and restores the client's terminal.
func (r *relay) end() {
	_ = syscall.Close(r.inner)
	select {
	case <-r.shown:
	case <-time.After(drainTime): // a leftover process has the terminal open
	}
	_ = linux.Set(0, r.before)
}

// These types stop io.Copy from looking for faster paths, which a terminal does not have.
type (
	onlyRead  struct{ io.Reader }
	onlyWrite struct{ io.Writer }
)
