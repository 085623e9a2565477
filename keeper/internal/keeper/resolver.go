package keeper

import (
	"bytes"
	"io"
	"net/netip"
	"os"
	"syscall"
)

const (
	resolvConf     = "/etc/resolv.conf"
	resolvConfMost = 64 << 10
)

// pointResolver has programs ask the given server for names. Whatever address they ask, the host answers; so a file that
// names any that is not loopback's is left as the image or a user made it. One that is missing, empty, a link to nowhere or
// meant for another machine's own resolver is replaced. Root inside can be in the way of that, which is its own loss.
func pointResolver(server string) {
	if server == "" || asksOutside(readBounded(resolvConf)) {
		return
	}
	draft := resolvConf + ".skerry"
	_ = os.Remove(draft)
	text := "nameserver " + server + "\noptions timeout:1 attempts:2\n"
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return
	}
	_, err = f.WriteString(text)
	_ = f.Chmod(0o644)
	_ = f.Close()
	if err == nil {
		err = os.Rename(draft, resolvConf)
	}
	if err != nil {
		_ = os.Remove(draft)
	}
}

// asksOutside says whether a resolv.conf names a server of IPv4 that is not loopback's.
func asksOutside(text []byte) bool {
	for _, line := range bytes.Split(text, []byte("\n")) {
		words := bytes.Fields(line)
		if len(words) < 2 || string(words[0]) != "nameserver" {
			continue
		}
		address, err := netip.ParseAddr(string(words[1]))
		if err == nil && address.Is4() && !address.IsLoopback() && !address.IsUnspecified() {
			return true
		}
	}
	return false
}

// readBounded reads an ordinary file; a pipe or a device that somebody put there is not waited for.
func readBounded(path string) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(f, resolvConfMost))
	return text
}
