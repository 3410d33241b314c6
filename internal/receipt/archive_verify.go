package receipt

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// archiveText is how much of a bundle's own JSON a verifier reads.
const archiveText = 1 << 30

// An archive is what was read of a bundle.
type archive struct {
	sums   map[string]cell.Digest
	texts  map[string][]byte // of receipts.json and contents.json
	chains map[string]*Problem
	odd    []Problem
	judged map[string]bool // files that genuine receipts name
	end    error           // why it can't be read further
}

// VerifyArchive checks a bundle with the public key alone: the receipts in it as Verify does, the files that they name, and
// that nothing was added or taken away. It reads r once. files is how many were compared with what receipts say of them. It
// fails only when r can't be read; what is wrong is in the report.
func VerifyArchive(r io.Reader, key PublicKey, known *Head) (rep *Report, files int, err error) {
	rep, _, files, err = verifyArchive(r, key, known, map[string]bool{}, nil)
	return rep, files, err
}

// verifyArchive is VerifyArchive, and returns what it read. ids are the receipts that others may come from; those of the
// bundle are added. whole: see verify.
func verifyArchive(r io.Reader, key PublicKey, known *Head, ids map[string]bool, whole *Keys) (rep *Report, b *Bundle, files int, err error) {
	a, err := readArchive(r)
	if err != nil {
		return nil, nil, 0, err
	}
	rep = &Report{Head: Head{Size: -1}}
	if a.texts[ArchiveContents] == nil {
		rep.addFile(Truncated, ArchiveContents, "the bundle ends before it, and it is the last file"+because(a.end))
		return rep, nil, 0, nil
	}
	keys, signer := keysOf(key), key
	if text, ok := a.texts[ArchiveReceipts]; !ok {
		rep.addFile(Missing, ArchiveReceipts, "it is not there")
	} else if b, err = DecodeBundle(text); err != nil {
		rep.addFile(Edited, ArchiveReceipts, "it is not what pando exports")
		b = nil
	} else {
		if rep, keys, signer = verify(b, key, known, whole); keys == nil {
			return rep, b, 0, nil
		}
	}
	listed, contents, fault := a.contents(signer)
	rep.Problems = append(rep.Problems, a.odd...)
	switch fault {
	case foreign:
		rep.addFile(WrongKey, ArchiveContents, "it is signed by another key")
	case unsigned:
		if a.fits(listed) {
			rep.addFile(Recomputed, ArchiveContents, "its signature is not right, though it fits the files")
		} else {
			rep.addFile(Edited, ArchiveContents, "its signature is not right")
		}
	case unreadable:
		rep.addFile(Edited, ArchiveContents, "it is not a list of files")
	}
	if fault != genuine {
		listed, contents = nil, Contents{}
	}
	if b != nil {
		if fault == genuine && !b.All {
			judgeChosen(rep, b, contents.Receipts)
		}
		files = a.judgeRuns(rep, b, keys, contents.Absent, ids)
	}
	if fault == genuine {
		a.judgeListed(rep, listed)
	}
	return rep, b, files, nil
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func (r *Report) addFile(reason Reason, name, what string) {
	n := len(r.Problems)
	if r.add(reason, -1, "%s", what); len(r.Problems) > n {
		r.Problems[n].File = name
	}
}

func readArchive(r io.Reader) (*archive, error) {
	a := &archive{sums: map[string]cell.Digest{}, texts: map[string][]byte{}, chains: map[string]*Problem{}, judged: map[string]bool{}}
	source := &noted{r: r}
	for t := tar.NewReader(source); ; {
		h, err := t.Next()
		if err == nil {
			err = a.read(h, t)
		}
		switch {
		case source.err != nil:
			return nil, source.err
		case err == io.EOF:
			return a, nil
		case err != nil:
			a.end = err
			return a, nil
		}
	}
}

// noted notes errors of a reader, which are not errors of what it reads.
type noted struct {
	r   io.Reader
	err error
}

func (f *noted) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

func (a *archive) read(h *tar.Header, body io.Reader) error {
	odd := func(reason Reason, what string) {
		if len(a.odd) < maxProblems {
			a.odd = append(a.odd, Problem{reason, -1, h.Name, what})
		}
	}
	if h.Typeflag != tar.TypeReg || isSparse(h) { // nothing of which is read
		odd(Added, "it is no file, or one with holes")
		return nil
	}
	if _, twice := a.sums[h.Name]; twice {
		odd(Repeated, "it is there twice")
		return nil
	}
	sum := sha256.New()
	in := io.TeeReader(body, sum)
	run, name, _ := strings.Cut(strings.TrimPrefix(h.Name, "runs/"), "/")
	switch {
	case h.Name == ArchiveReceipts || h.Name == ArchiveContents:
		if h.Size > archiveText {
			return fmt.Errorf("%s is too long", h.Name)
		}
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		a.texts[h.Name] = text
	case strings.HasPrefix(h.Name, "runs/") && name == "events.jsonl":
		p, err := VerifyEvents(in, cell.RunID(run), nil)
		if err != nil {
			return err
		}
		a.chains[h.Name] = p
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	a.sums[h.Name] = cell.Digest(sum.Sum(nil))
	return nil
}

// isSparse reports whether a file has holes, which are of any length at no cost in the archive.
func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// contents reads the list of the files.
func (a *archive) contents(key PublicKey) (list []Subject, c Contents, f fault) {
	e, err := parseEnvelope(bytes.TrimSuffix(a.texts[ArchiveContents], []byte("\n")))
	if err != nil {
		return nil, c, unreadable
	}
	var s Statement
	if json.Unmarshal(e.payload, &s) != nil || s.Type != StatementType || s.PredicateType != PredicateContents || json.Unmarshal(s.Predicate, &c) != nil {
		f = unreadable
	}
	switch signed := e.signedBy(key); {
	case signed && e.keyid == key.ID():
	case !signed && e.keyid != key.ID():
		f = foreign
	case f == genuine:
		f = unsigned
	}
	return s.Subject, c, f
}

func (a *archive) fits(list []Subject) bool {
	for _, s := range list {
		if sum, ok := a.sums[s.Name]; !ok || sum != s.Digest {
			return false
		}
	}
	return len(list) > 0
}

// judgeChosen compares the receipts with those that are listed.
func judgeChosen(r *Report, b *Bundle, listed []int64) {
	there, wanted := map[int64]bool{}, map[int64]bool{}
	for _, index := range listed {
		wanted[index] = true
	}
	for _, p := range b.Receipts {
		there[p.Index] = true
		if !wanted[p.Index] && !r.tells(p.Index) {
			r.add(Added, p.Index, "receipt %d is not among those of the bundle", p.Index)
		}
	}
	for _, index := range listed {
		if !there[index] && !r.tells(index) {
			r.add(Dropped, index, "receipt %d is missing", index)
		}
	}
}

func (r *Report) tells(index int64) bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Index == index })
}

// judgeRuns compares files with what genuine receipts of runs say of them.
func (a *archive) judgeRuns(r *Report, b *Bundle, keys *Keys, absent []string, ids map[string]bool) (files int) {
	parents, erased := map[string]int64{}, erasures{}
	for _, proven := range b.Receipts { // before the runs that they are about
		var room []byte
		if it := check(proven.Envelope, keys, &room); it.fault != genuine {
			continue
		}
		if s, err := proven.Statement(); err == nil && s.PredicateType == PredicateVerdict {
			erased.add(s.Predicate)
		}
	}
	for _, proven := range b.Receipts {
		ids[cell.Sum(proven.Envelope).String()] = true
		var room []byte
		if it := check(proven.Envelope, keys, &room); it.fault != genuine {
			continue
		}
		s, err := proven.Statement()
		var p struct {
			Run     string                 `json:"run"`
			Files   map[string]cell.Digest `json:"files"`
			Parents []string               `json:"parents"`
		}
		if err != nil || json.Unmarshal(s.Predicate, &p) != nil {
			continue
		}
		for _, id := range p.Parents {
			parents[id] = proven.Index
		}
		if s.PredicateType == PredicateVerdict {
			var act SignedOff
			if err := json.Unmarshal(s.Predicate, &act); err != nil {
				r.add(Edited, proven.Index, "it says nothing that can be read of a sign-off")
			} else if why := act.Fault(keys.Origin()); why != "" {
				r.add(Edited, proven.Index, "%s", why)
			}
		}
		if s.PredicateType == PredicateRun {
			files += len(p.Files)
			a.judgeRun(r, proven.Index, p.Run, p.Files, absent, erased)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(parents)) {
		if !ids[id] {
			r.unproven("what receipt %d comes from: receipt %s is not in the bundle", parents[id], id)
		}
	}
	return files
}

func (a *archive) judgeRun(r *Report, index int64, run string, digests map[string]cell.Digest, absent []string, erased erasures) {
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		path := ArchiveRun(run, name)
		sum, there := a.sums[path]
		reason, what := Reason(""), ""
		switch chain := a.chains[path]; {
		case !there && slices.Contains(absent, path) && erased[path].words != "" && erased[path].digest == digests[name]:
			r.unproven("what %s said: it was %s", path, erased[path].words)
			if found := erased[path].found; found != "" {
				reason, what = Missing, "it was not what the receipt names when it was erased: its digest was "+found
			}
		case !there && slices.Contains(absent, path):
			r.unproven("what %s said: the installation did not have it any more", path)
		case !there:
			reason, what = Missing, "it is not there"
		case sum != digests[name]:
			reason, what = Edited, fmt.Sprintf("it has the digest %s, the receipt says %s", sum.Short(), digests[name].Short())
		case chain != nil:
			reason, what = chain.Reason, chain.What
		}
		a.judged[path] = true
		if reason != "" {
			n := len(r.Problems)
			if r.add(reason, index, "%s", what); len(r.Problems) > n {
				r.Problems[n].File = path
			}
		}
	}
}

// judgeListed compares the files that no receipt names with the list. Receipts that are wrong are named as such.
func (a *archive) judgeListed(r *Report, list []Subject) {
	listed, told := map[string]bool{ArchiveContents: true}, !r.OK()
	for _, s := range list {
		listed[s.Name] = true
		sum, there := a.sums[s.Name]
		switch {
		case s.Name == ArchiveReceipts && (told || !there):
		case a.judged[s.Name]:
		case !there:
			r.addFile(Missing, s.Name, "it is not there")
		case sum != s.Digest:
			r.addFile(Edited, s.Name, fmt.Sprintf("it has the digest %s, %s says %s", sum.Short(), ArchiveContents, s.Digest.Short()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.sums)) {
		if !listed[name] && !a.judged[name] {
			r.addFile(Added, name, "it is not among the files of the bundle")
		}
	}
}

// ArchiveExport is the export in a bundle, of which nothing is checked.
func ArchiveExport(r io.Reader) (*Bundle, error) {
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if err != nil {
			return nil, cell.Errorf(cell.Invalid, "receipt.ArchiveExport", "", "cannot read the bundle: it has no %s", ArchiveReceipts)
		}
		if h.Name != ArchiveReceipts || h.Size > archiveText {
			continue
		}
		text, err := io.ReadAll(t)
		if err != nil {
			return nil, err
		}
		return DecodeBundle(text)
	}
}
