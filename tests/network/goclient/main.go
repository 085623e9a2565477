// Command goclient is a static Go program without settings: it fetches a URL, or talks to a port. Go reads
// /etc/resolv.conf itself.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(how, where string) error {
	if how == "get" {
		client := &http.Client{Timeout: 10 * time.Second}
		answer, err := client.Get(where)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		_, err = io.Copy(os.Stdout, answer.Body)
		return err
	}
	caller, err := net.DialTimeout("tcp", where, 10*time.Second)
	if err != nil {
		return err
	}
	defer caller.Close()
	caller.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := caller.Write([]byte("hello from go")); err != nil {
		return err
	}
	said := make([]byte, 13)
	if _, err := io.ReadFull(caller, said); err != nil {
		return err
	}
	fmt.Println(string(said))
	return nil
}
