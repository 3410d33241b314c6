package gofer

import "golang.org/x/sys/unix"

// forExec is among the flags of Linux's open of what is to be executed (__FMODE_EXEC in
// include/linux/fs.h), which no program can ask for.
const forExec = 1 << 5

// Executed returns how often the guest's programs executed the files at these paths
// below root, since it was first asked of each: its kernel says that it opens one for
// that. A path that leads nowhere, or over a symlink, is none.
func (s *Server) Executed(paths []string) map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int64{}
	for _, p := range paths {
		times := s.counted[p]
		if times == nil {
			k, e := s.keyAt(p)
			if e != 0 {
				continue
			}
			times = new(int64)
			s.counted[p], s.executed[k] = times, times
		}
		out[p] = *times
	}
	return out
}

func (s *Server) keyAt(path string) (k key, e unix.Errno) {
	at, e := s.walk(namesOf(path))
	if e != 0 {
		return k, e
	}
	defer unix.Close(at)
	var x unix.Statx_t
	e = stat(at, "", &x)
	return keyOf(&x), e
}

// opens counts that a file was opened.
func (s *Server) opens(n *node, flags uint32) {
	if flags&forExec == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if times := s.executed[n.key]; times != nil {
		*times++
	}
}
