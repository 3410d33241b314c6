package linux

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// borrowed is a stopped thread of another process that makes calls for us. All of it
// happens in one locked thread of ours.
type borrowed struct {
	tid      int
	was      unix.PtraceRegs
	mask     uint64 // its blocked signals
	call64   uint64 // address of a system call instruction
	answered bool   // it has made a call: giveBack must restore was
}

// borrowWait is the time limit for a thread to stop.
const borrowWait = time.Second

// borrow stops a thread of a process that is not its first.
func borrow(pid int) (*borrowed, error) {
	at, err := findCall(pid)
	if err != nil {
		return nil, err
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, err
	}
	err = unix.ESRCH
	for _, t := range tasks {
		tid, _ := strconv.Atoi(t.Name())
		if tid == pid || tid == 0 {
			continue
		}
		b := &borrowed{tid: tid, call64: at}
		if err = b.stop(); err == nil {
			return b, nil
		}
		if err != unix.ESRCH { // else it has ended meanwhile
			break
		}
	}
	return nil, fmt.Errorf("cannot stop a thread: %w", err)
}

// stop stops the thread, blocks its signals, and remembers both.
func (b *borrowed) stop() error {
	if err := unix.PtraceSeize(b.tid); err != nil {
		return err
	}
	err := unix.PtraceInterrupt(b.tid)
	if err == nil {
		_, err = b.wait()
	}
	if err == nil {
		err = unix.PtraceGetRegs(b.tid, &b.was)
	}
	if err == nil && b.was.Cs != 0x33 { // it executes 32 bit code
		err = unix.ENOSYS
	}
	if err == nil {
		err = b.signals(unix.PTRACE_GETSIGMASK, &b.mask)
	}
	if err == nil {
		all := ^uint64(0)
		if err = b.signals(unix.PTRACE_SETSIGMASK, &all); err == nil {
			err = unix.PtraceSetOptions(b.tid, unix.PTRACE_O_TRACESYSGOOD)
		}
	}
	if err != nil {
		unix.PtraceDetach(b.tid)
	}
	return err
}

// wait waits until the thread is stopped, and returns the reason. Its death is ESRCH.
func (b *borrowed) wait() (ws unix.WaitStatus, err error) {
	for end := time.Now().Add(borrowWait); ; time.Sleep(20 * time.Microsecond) {
		got, err := unix.Wait4(b.tid, &ws, unix.WALL|unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, err
		case got == b.tid && ws.Stopped():
			return ws, nil
		case got == b.tid:
			return 0, unix.ESRCH
		case time.Now().After(end):
			return 0, unix.ETIMEDOUT
		}
	}
}

// call makes the thread run a system call.
func (b *borrowed) call(nr uintptr, args ...uint64) (uint64, error) {
	regs := b.was
	regs.Rip, regs.Rax, regs.Orig_rax = b.call64, uint64(nr), ^uint64(0)
	for i, to := range []*uint64{&regs.Rdi, &regs.Rsi, &regs.Rdx, &regs.R10, &regs.R8, &regs.R9} {
		if *to = 0; i < len(args) {
			*to = args[i]
		}
	}
	b.answered = true
	if err := unix.PtraceSetRegs(b.tid, &regs); err != nil {
		return 0, err
	}
	for range 2 { // the entry of the call, its exit
		if err := b.step(); err != nil {
			return 0, err
		}
	}
	if err := unix.PtraceGetRegs(b.tid, &regs); err != nil {
		return 0, err
	}
	if int64(regs.Rax) < 0 && int64(regs.Rax) > -4096 {
		return 0, unix.Errno(-int64(regs.Rax))
	}
	return regs.Rax, nil
}

// step resumes the thread until the entry or the exit of a call. If its process is stopped
// meanwhile, the thread stops only when it is given back.
func (b *borrowed) step() error {
	for signal := 0; ; {
		if err := unix.PtraceSyscall(b.tid, signal); err != nil {
			return err
		}
		ws, err := b.wait()
		if err != nil || ws.StopSignal() == unix.SIGTRAP|0x80 {
			return err
		}
		if signal = 0; ws>>16 == 0 { // one that can't be blocked
			signal = int(ws.StopSignal())
		}
	}
}

// The values in place of a call's result while it is interrupted (linux/errno.h): it is
// repeated as it was, or continues by another call.
const (
	restartSys, restartNoIntr, restartNoHand, restartBlock = -512, -513, -514, -516
)

// giveBack resumes the thread where it was. It repeats an interrupted call itself: the
// kernel does that only on the way out of a signal, and the thread now comes from a call
// of ours.
func (b *borrowed) giveBack() error {
	var err error
	if b.answered {
		back := b.was
		if int64(back.Orig_rax) >= 0 {
			switch int64(back.Rax) {
			case restartSys, restartNoIntr, restartNoHand:
				back.Rax, back.Rip = back.Orig_rax, back.Rip-2
			case restartBlock:
				back.Rax, back.Rip = unix.SYS_RESTART_SYSCALL, back.Rip-2
			}
			back.Orig_rax = ^uint64(0)
		}
		if err = unix.PtraceSetRegs(b.tid, &back); err != nil { // it still runs: a call failed
			if err = unix.PtraceInterrupt(b.tid); err == nil {
				if _, err = b.wait(); err == nil {
					err = unix.PtraceSetRegs(b.tid, &back)
				}
			}
		}
	}
	if e := b.signals(unix.PTRACE_SETSIGMASK, &b.mask); err == nil {
		err = e
	}
	if e := unix.PtraceDetach(b.tid); err == nil {
		err = e
	}
	return err
}

// findCall finds a system call instruction in the pages that the kernel maps into every
// process.
func findCall(pid int) (uint64, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	if len(maps) == 0 { // it is ending
		return 0, unix.ESRCH
	}
	for line := range bytes.Lines(maps) {
		if !bytes.HasSuffix(line, []byte("[vdso]\n")) {
			continue
		}
		var start, end uint64
		if _, err := fmt.Sscanf(string(line), "%x-%x", &start, &end); err != nil {
			return 0, err
		}
		code := make([]byte, end-start)
		local := []unix.Iovec{{Base: &code[0]}}
		local[0].SetLen(len(code))
		n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(start), Len: len(code)}}, 0)
		if err != nil {
			return 0, os.NewSyscallError("process_vm_readv", err)
		}
		if i := bytes.Index(code[:n], []byte{0x0f, 0x05}); i >= 0 {
			return start + uint64(i), nil
		}
	}
	return 0, unix.ENOSYS
}
