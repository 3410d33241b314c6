package guest

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The keeper accepts each connection to a socket in the cell. A cancelled question loses
// none. On the host there is no such socket.
func TestAccept(t *testing.T) {
	beds(t, func(t *testing.T, b *bed) {
		path := filepath.Join(t.TempDir(), "socket")
		given, cancel := context.WithCancel(b.ctx)
		failed := make(chan error, 1)
		go func() {
			_, err := b.Accept(given, path)
			failed <- err
		}()
		time.Sleep(50 * time.Millisecond) // the guest listens, or does so later
		cancel()
		if err := <-failed; err == nil {
			t.Error("a question that was given up is answered")
		}
		for range 3 {
			c := sh("a", "")
			c.Process.Args = []string{"python3", "-c", `
import socket, sys, time
s = socket.socket(socket.AF_UNIX)
for i in range(500):
    try: s.connect(sys.argv[1]); break
    except (FileNotFoundError, ConnectionRefusedError): time.sleep(0.01)
s.sendall(b"who are you?"); s.shutdown(socket.SHUT_WR)
print(s.makefile().read())
`, path}
			c.Process.Path = []string{"/usr/bin/python3"}
			served := make(chan error, 1)
			go func() {
				conn, err := b.Accept(b.ctx, path)
				if err == nil {
					var q []byte
					if q, err = io.ReadAll(conn); err == nil {
						_, err = io.WriteString(conn, "I heard "+string(q))
					}
					conn.Close()
				}
				served <- err
			}()
			exit, out, errs := b.run(t, c, "")
			if err := <-served; err != nil || exit.Code != 0 || out != "I heard who are you?\n" {
				t.Fatalf("%v: %+v %q %s", err, exit, out, errs)
			}
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the host has a socket there: %v", err)
		}
		if _, err := b.Accept(b.ctx, filepath.Join(t.TempDir(), "no", "folder")); cell.KindOf(err) != cell.Unavailable {
			t.Errorf("without a folder: %v", err)
		}
	})
}
