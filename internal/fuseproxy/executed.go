package fuseproxy

import "golang.org/x/sys/unix"

// forExec is the flag of a kernel-internal open for execution (__FMODE_EXEC in
// include/linux/fs.h). Programs cannot set it.
const forExec = 1 << 5

// Executed returns how often the guest's programs executed the files at these paths below root,
// since the first query of each path. The guest's kernel opens a file with forExec for that. A
// path that does not exist, or contains a symlink, counts zero.
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

// opens counts an open of a file.
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
