package sudo

import (
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"skerry/keeper/internal/linux"
)

const lastWords = 200 * time.Millisecond

// relay is a terminal of the command's own, as sudo makes one: a shell needs to be the one in charge of its terminal, and
// ours has our caller in charge already. What is typed at ours goes there, and what is shown there is shown at ours.
type relay struct {
	outer  *os.File // the end of the command's terminal that we hold
	inner  int      // the end that becomes its stdio; we keep it too, for it has no end while anybody has it open
	before syscall.Termios
	shown  chan struct{} // closed when all has been shown
}

// newRelay makes one if all of our stdio is a terminal, and we are in front of it; nil: the command gets our stdio.
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

// stdio is the command's.
func (r *relay) stdio() []int { return []int{r.inner, r.inner, r.inner} }

// begin passes bytes and sizes on, once the command's terminal has been handed over.
func (r *relay) begin() {
	sizes := make(chan os.Signal, 1)
	signal.Notify(sizes, syscall.SIGWINCH)
	_ = linux.Set(0, linux.Raw(r.before))
	go func() {
		_, _ = io.Copy(os.Stdout, onlyRead{r.outer}) // it ends with EIO
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

// end shows the last of it, and leaves our terminal as it was.
func (r *relay) end() {
	_ = syscall.Close(r.inner)
	select {
	case <-r.shown:
	case <-time.After(lastWords): // something left behind has it open
	}
	_ = linux.Set(0, r.before)
}

// These keep io.Copy from looking for faster ways, which a terminal does not have.
type (
	onlyRead  struct{ io.Reader }
	onlyWrite struct{ io.Writer }
)
