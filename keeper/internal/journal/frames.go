package journal

import (
	"encoding/binary"
	"errors"
	"syscall"

	"skerry/keeper/internal/wire"
)

var errSpoiled = errors.New("not what was written")

const frameMost = 1 << 20 // no frame is larger, and the host takes none that is

// frame is one frame's head, as a file has it.
type frame struct {
	kind byte
	size int64
}

// frameIn reads the head at the front of b; left is how many bytes of the file are known to be whole frames.
func frameIn(b []byte, left int64) (frame, error) {
	if len(b) < wire.FrameHead {
		return frame{}, errSpoiled
	}
	f := frame{b[0], int64(binary.BigEndian.Uint32(b[1:]))}
	if !kept(f.kind) || f.size == 0 || f.size > min(left-wire.FrameHead, frameMost) {
		return frame{}, errSpoiled
	}
	return f, nil
}

func kept(kind byte) bool { return kind == wire.Stdout || kind == wire.Stderr || kind == wire.Channel }

// fromFile reads frames of the segment that was entered, of which size bytes are written.
func (r *Reader) fromFile(window []byte, most, size int64) (Piece, error) {
	if err := r.seek(window, size); err != nil {
		return Piece{}, err
	}
	got := int64(readAt(r.seg.fd, window[:min(int64(len(window)), size-r.at)], r.at))
	first, err := frameIn(window[:got], size-r.at)
	if err != nil {
		return Piece{}, err
	}
	if r.skip > 0 || first.size > most {
		return r.cut(window, first, most)
	}
	if wire.FrameHead+first.size > got {
		return r.large(window[:got], first)
	}
	return r.whole(window[:got], most, size), nil
}

// seek moves on to the frame that the offset lies in.
func (r *Reader) seek(window []byte, size int64) error {
	for r.skip > 0 {
		got := int64(readAt(r.seg.fd, window[:min(int64(len(window)), size-r.at)], r.at))
		moved := int64(0)
		for moved+wire.FrameHead <= got {
			f, err := frameIn(window[moved:got], size-r.at-moved)
			if err != nil {
				return err
			}
			if f.size > r.skip {
				r.at += moved
				return nil
			}
			r.skip -= f.size
			moved += wire.FrameHead + f.size
		}
		if moved == 0 {
			return errSpoiled
		}
		r.at += moved
	}
	return nil
}

// whole returns all frames that the window holds, at least one.
func (r *Reader) whole(window []byte, most, size int64) Piece {
	end, data := int64(0), int64(0)
	for end+wire.FrameHead <= int64(len(window)) {
		f, err := frameIn(window[end:], size-r.at-end)
		if err != nil || end+wire.FrameHead+f.size > int64(len(window)) || data+f.size > most {
			break // a spoiled one is met again, as the first
		}
		end += wire.FrameHead + f.size
		data += f.size
	}
	r.at += end
	return Piece{Frames: window[:end], Data: data}
}

// large returns a frame of which the window holds the beginning, if the file has the rest.
func (r *Reader) large(window []byte, f frame) (Piece, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(r.seg.fd, &st); err != nil || st.Size < r.at+wire.FrameHead+f.size {
		return Piece{}, errSpoiled
	}
	mapped := r.seg.base != 0 && !r.paced
	if mapped {
		window = window[:wire.FrameHead]
	}
	got := int64(len(window))
	rest := wire.Rest{FD: r.seg.fd, At: r.at + got, Size: wire.FrameHead + f.size - got}
	if mapped {
		rest.Base = r.seg.base + uintptr(rest.At)
	}
	r.at += wire.FrameHead + f.size
	return Piece{Frames: window, Rest: rest, Data: f.size}, nil
}

// cut returns a part of a frame as a frame of its own.
func (r *Reader) cut(window []byte, f frame, most int64) (Piece, error) {
	n := min(f.size-r.skip, most, int64(len(window)-wire.FrameHead))
	if n <= 0 { // its head was another one when it was looked for: root inside writes to the file right now
		return Piece{}, errSpoiled
	}
	part := window[:wire.FrameHead+n]
	if int64(readAt(r.seg.fd, part[wire.FrameHead:], r.at+wire.FrameHead+r.skip)) < n {
		return Piece{}, errSpoiled
	}
	wire.PutHead(part, f.kind)
	if r.skip += n; r.skip == f.size {
		r.at, r.skip = r.at+wire.FrameHead+f.size, 0
	}
	return Piece{Frames: part, Data: n}, nil
}
