package journal

import (
	"encoding/binary"
	"errors"
	"syscall"

	"skerry/keeper/internal/httpwire"
)

var errCorrupt = errors.New("the file is not what the keeper wrote")

const maxFrame = 1 << 20 // the host rejects larger frames

// frame is the header of a frame in a file.
type frame struct {
	kind byte
	size int64
}

// frameIn reads the header at the front of b; left is the number of bytes from there to the end of the whole frames.
func frameIn(b []byte, left int64) (frame, error) {
	if len(b) < httpwire.FrameHeader {
		return frame{}, errCorrupt
	}
	f := frame{b[0], int64(binary.BigEndian.Uint32(b[1:]))}
	if !kept(f.kind) || f.size == 0 || f.size > min(left-httpwire.FrameHeader, maxFrame) {
		return frame{}, errCorrupt
	}
	return f, nil
}

func kept(kind byte) bool {
	return kind == httpwire.Stdout || kind == httpwire.Stderr || kind == httpwire.Channel
}

// fromFile reads frames of the entered segment, of which size bytes are written.
func (r *Reader) fromFile(window []byte, limit, size int64) (Piece, error) {
	if err := r.seek(window, size); err != nil {
		return Piece{}, err
	}
	got := int64(readAt(r.seg.fd, window[:min(int64(len(window)), size-r.at)], r.at))
	first, err := frameIn(window[:got], size-r.at)
	if err != nil {
		return Piece{}, err
	}
	if r.skip > 0 || first.size > limit {
		return r.cut(window, first, limit)
	}
	if httpwire.FrameHeader+first.size > got {
		return r.large(window[:got], first)
	}
	return r.whole(window[:got], limit, size), nil
}

// seek moves to the frame that contains the offset.
func (r *Reader) seek(window []byte, size int64) error {
	for r.skip > 0 {
		got := int64(readAt(r.seg.fd, window[:min(int64(len(window)), size-r.at)], r.at))
		moved := int64(0)
		for moved+httpwire.FrameHeader <= got {
			f, err := frameIn(window[moved:got], size-r.at-moved)
			if err != nil {
				return err
			}
			if f.size > r.skip {
				r.at += moved
				return nil
			}
			r.skip -= f.size
			moved += httpwire.FrameHeader + f.size
		}
		if moved == 0 {
			return errCorrupt
		}
		r.at += moved
	}
	return nil
}

// whole returns all frames in the window, at least one.
func (r *Reader) whole(window []byte, limit, size int64) Piece {
	end, data := int64(0), int64(0)
	for end+httpwire.FrameHeader <= int64(len(window)) {
		f, err := frameIn(window[end:], size-r.at-end)
		if err != nil || end+httpwire.FrameHeader+f.size > int64(len(window)) || data+f.size > limit {
			break // the next call meets a corrupt frame first
		}
		end += httpwire.FrameHeader + f.size
		data += f.size
	}
	r.at += end
	return Piece{Frames: window[:end], Data: data}
}

// large returns a frame that begins in the window, if the file has the rest.
func (r *Reader) large(window []byte, f frame) (Piece, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(r.seg.fd, &st); err != nil || st.Size < r.at+httpwire.FrameHeader+f.size {
		return Piece{}, errCorrupt
	}
	mapped := r.seg.base != 0 && !r.paced
	if mapped {
		window = window[:httpwire.FrameHeader]
	}
	got := int64(len(window))
	rest := httpwire.Rest{FD: r.seg.fd, At: r.at + got, Size: httpwire.FrameHeader + f.size - got}
	if mapped {
		rest.Base = r.seg.base + uintptr(rest.At)
	}
	r.at += httpwire.FrameHeader + f.size
	return Piece{Frames: window, Rest: rest, Data: f.size}, nil
}

// cut returns a part of a frame as a frame.
func (r *Reader) cut(window []byte, f frame, limit int64) (Piece, error) {
	n := min(f.size-r.skip, limit, int64(len(window)-httpwire.FrameHeader))
	if n <= 0 { // the header has changed since seek: root inside is writing to the file
		return Piece{}, errCorrupt
	}
	part := window[:httpwire.FrameHeader+n]
	if int64(readAt(r.seg.fd, part[httpwire.FrameHeader:], r.at+httpwire.FrameHeader+r.skip)) < n {
		return Piece{}, errCorrupt
	}
	httpwire.PutHeader(part, f.kind)
	if r.skip += n; r.skip == f.size {
		r.at, r.skip = r.at+httpwire.FrameHeader+f.size, 0
	}
	return Piece{Frames: part, Data: n}, nil
}
