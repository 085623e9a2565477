package journal

import (
	"slices"
	"strconv"
	"strings"
	"syscall"

	"skerry/keeper/internal/httpwire"
	"skerry/keeper/internal/linux"
)

const (
	maxNames  = 1 << 16  // names examined in the directory
	maxWalk   = 64 << 20 // bytes read to measure the output in files
	maxOffset = 1 << 53
)

// Span is a segment in a stored record: the offsets of its output and the size of its file.
type Span [3]int64

// Spans lists the output in files.
func (j *Journal) Spans() []Span {
	j.mu.Lock()
	defer j.mu.Unlock()
	spans := []Span{}
	for _, g := range j.segments {
		if g.size > 0 {
			spans = append(spans, Span{g.first, g.end, g.size})
		}
	}
	return spans
}

// Past holds the files of an earlier start.
type Past struct {
	store *Store
	files map[string][]*segment
	walk  int64 // bytes that may still be read for measuring
}

// Open examines the existing files; nil: none.
func (s *Store) Open() *Past {
	fd, err := openDirectory(s.path)
	if err != nil {
		return nil
	}
	s.dir.Store(int32(fd))
	p := &Past{store: s, files: map[string][]*segment{}, walk: maxWalk}
	list := linux.NewDirents(fd)
	for range maxNames {
		entry, err := list.Next()
		if err != nil || entry == nil {
			break
		}
		p.add(entry.Name)
	}
	return p
}

func (p *Past) add(name string) {
	id, offset, ok := strings.Cut(name, ".")
	first, err := strconv.ParseUint(offset, 16, 53)
	var st syscall.Stat_t
	if !ok || err != nil || len(offset) != 16 || linux.Lstatat(p.store.directory(), name, &st) != nil {
		return
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		_ = p.store.unlink(name)
		return
	}
	p.files[id] = append(p.files[id], &segment{
		name: name, first: int64(first), size: st.Size, id: fileID{uint64(st.Dev), st.Ino}, fd: -1,
	})
}

// Journal returns the journal of a process of an earlier start. It trusts the stored record until a reader checks the
// frames; without a record it measures the files.
func (p *Past) Journal(id string, end int64, spans []Span) *Journal {
	j := p.store.New(id, 0)
	j.closed = true
	files := p.files[id]
	delete(p.files, id)
	slices.SortFunc(files, func(a, b *segment) int { return int(min(max(a.first-b.first, -1), 1)) })
	for _, g := range files {
		if i := slices.IndexFunc(spans, func(s Span) bool { return s[0] == g.first && s[2] == g.size }); i >= 0 {
			g.end = spans[i][1]
		} else {
			p.measure(g)
		}
		if g.end <= g.first || g.end > maxOffset || g.first < j.end || len(j.segments) >= maxSegments {
			_ = p.store.unlink(g.name)
			continue
		}
		j.segments = append(j.segments, g)
		j.end = g.end
		j.account(g, g.size)
	}
	j.end = max(j.end, min(end, maxOffset))
	return j
}

// measure counts the output in the whole frames of a file.
func (p *Past) measure(g *segment) {
	fd, err := p.store.open(g.name, g.id)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	window := make([]byte, minSegmentSize)
	at, output := int64(0), int64(0)
	for p.walk > 0 && at < g.size {
		got := int64(readAt(fd, window[:min(int64(len(window)), g.size-at)], at))
		p.walk -= got
		moved := int64(0)
		for moved+httpwire.FrameHeader <= got {
			f, err := frameIn(window[moved:got], g.size-at-moved)
			if err != nil {
				break
			}
			moved += httpwire.FrameHeader + f.size
			output += f.size
		}
		if moved == 0 {
			break
		}
		at += moved
	}
	g.size, g.end = at, g.first+output
}

// Close deletes the files that belong to no process.
func (p *Past) Close() {
	for _, files := range p.files {
		for _, g := range files {
			_ = p.store.unlink(g.name)
		}
	}
	p.store.reserve(0)
}
