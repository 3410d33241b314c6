package gateway

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

// onSocket is a link to a machine that takes frames when the test does.
func onSocket(t *testing.T) (p *patient, machine *os.File) {
	t.Helper()
	f, machine, err := linux.FramePair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); machine.Close() })
	end, err := fdbased.New(&fdbased.Options{FDs: []int{int(f.Fd())}, MTU: 65520})
	if err != nil {
		t.Fatal(err)
	}
	return &patient{LinkEndpoint: end, fd: int(f.Fd()), patience: patience}, machine
}

// put sends some large packets at once, numbered from first on.
func (p *patient) put(first, n int) (sent int) {
	var list stack.PacketBufferList
	for i := range n {
		b := make([]byte, 60<<10)
		binary.BigEndian.PutUint32(b, uint32(first+i))
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(b)})
		defer pkt.DecRef()
		list.PushBack(pkt)
	}
	sent, _ = p.WritePackets(list)
	return sent
}

// take reads a packet's number.
func take(t *testing.T, machine *os.File) int {
	t.Helper()
	b := make([]byte, 1<<16)
	machine.SetReadDeadline(time.Now().Add(testenv.Patience()))
	if n, err := machine.Read(b); n != 60<<10 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	return int(binary.BigEndian.Uint32(b))
}

// Nothing is lost on the way to a machine that is slower than the gateway, whatever
// there is room for.
func TestSlowMachineLosesNothing(t *testing.T) {
	p, machine := onSocket(t)
	p.patience = time.Minute // however slow
	const all = 120
	done := make(chan int, 1)
	go func() {
		n := 0
		for n < all && p.put(n, 30) == 30 {
			n += 30
		}
		done <- n
	}()
	for i := range all {
		if got := take(t, machine); got != i {
			t.Fatalf("packet %d came instead of %d", got, i)
		}
		time.Sleep(time.Millisecond / 2)
	}
	if n := <-done; n != all {
		t.Errorf("%d were sent", n)
	}
}

// A machine that takes nothing blocks only the first sender, and blocks a sender again after it
// has taken something.
func TestDeafMachineIsWaitedForOnce(t *testing.T) {
	p, machine := onSocket(t)
	began := time.Now()
	room := p.put(0, 60)
	if room == 0 || room == 60 {
		t.Fatalf("there is room for %d", room)
	}
	if took := time.Since(began); took < patience {
		t.Errorf("it was waited for %v", took)
	}
	p.patience = testenv.Patience()
	began = time.Now()
	for range 100 {
		if n := p.put(0, 1); n != 0 {
			t.Fatal("there is room all of a sudden")
		}
	}
	if took := time.Since(began); took >= p.patience {
		t.Errorf("a machine that takes nothing blocks for %v", took)
	}
	for i := range room {
		if got := take(t, machine); got != i {
			t.Fatalf("packet %d came instead of %d", got, i)
		}
	}
	if n := p.put(0, 1); n != 1 || p.deaf.Load() {
		t.Errorf("it is taken for deaf still: %d", n)
	}
}
