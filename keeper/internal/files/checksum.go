package files

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"hash"
	"io"

	"skerry/keeper/internal/bufpool"
)

// ErrAlgorithm rejects an unsupported checksum.
var ErrAlgorithm = errors.New("algorithm: must be one of sha256, sha512, sha1, md5")

var algorithms = map[string]func() hash.Hash{
	"sha256": sha256.New, "sha512": sha512.New, "sha1": sha1.New, "md5": md5.New,
}

// Checksum returns the hash of a file's content as hexadecimal digits.
func (fs *UserFS) Checksum(path, algorithm string) (string, error) {
	begin, ok := algorithms[algorithm]
	if !ok {
		return "", ErrAlgorithm
	}
	file, _, err := fs.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := begin()
	err = bufpool.With(func(b []byte) error {
		for at := int64(0); ; {
			n, err := file.ReadAt(b, at)
			_, _ = sum.Write(b[:n])
			if at += int64(n); err == io.EOF {
				return nil
			}
			if err == nil {
				err = fs.heartbeat()
			}
			if err != nil {
				return err
			}
		}
	})
	return hex.EncodeToString(sum.Sum(nil)), err
}
