package image

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Settings are what an image says about the commands in it.
type Settings struct {
	Env     []string `json:"env,omitempty"`     // NAME=value
	User    string   `json:"user,omitempty"`    // name or number, perhaps with a group
	Workdir string   `json:"workdir,omitempty"` // where its own command would run
}

// RootedRequest is what the plan of a root file system in a directory is made
// for. Of HostRequest, Root says where the host's own files lie.
type RootedRequest struct {
	HostRequest
	Dir      string // the root file system, on the real disk
	Settings Settings
	// Kept says that Dir is one that pando unpacked and keeps. The owner and place of any
	// other directory are checked.
	Kept bool
	// ReadOnly has commands write nothing to the image.
	ReadOnly bool
	// Builds says that the image is being made: the cell writes to its root directory, the home and the workspace are
	// not where the image could have something, and pando puts no files of its own over it.
	Builds bool
	// Used says that the cell has written to the image before: a program may be
	// there that the image doesn't have.
	Used bool
}

// whyImage is why a cell sees something of an image other than the host.
const whyImage = "image"

// A Seed is a file that a cell finds over its image from the beginning.
type Seed struct {
	Path string `json:"path"` // absolute, in the cell, without symlinks
	Text string `json:"text"`
	// Instead is the text of an earlier seed, which this one replaces, or only takes away if Text
	// is empty. What the cell itself wrote stays.
	Instead string `json:"instead,omitempty"`
}

// BuildDir holds the home and the workspace of a cell that makes an image.
const BuildDir = "/.pando-build"

// maxTops bounds the directories at the top of an image: each is a mount.
const maxTops = 100

// cellsOwn are the names at the top that an image has no say in.
var cellsOwn = append([]string{"tmp"}, BuildsOwn...)

// BuildsOwn is cellsOwn for a cell that makes an image.
var BuildsOwn = []string{"proc", "dev", "sys", "run", ".pando", "oldroot", "lost+found"}

// Rooted plans the root file system of a directory: what lies at its top, each
// directory below a writable layer of the cell's own, and the environment that
// the image gives. Nothing of the host is in it but what was asked for with
// --mount. Errors: Invalid, NotFound and Denied for what was asked for.
func Rooted(req RootedRequest) (*HostPlan, error) {
	p, err := newPlanner(req.HostRequest)
	if err != nil {
		return nil, err
	}
	if !req.Kept {
		if err := p.checkDir(req.Dir); err != nil {
			return nil, err
		}
	}
	in := newTree(req.Dir)
	r := &rooted{planner: p, in: in, req: req}
	if req.Builds {
		r.planner.req.Home, r.source = BuildDir+"/home", BuildDir+"/workspace"
		r.sources = []string{r.source}
	}
	if err := r.places(); err != nil {
		return nil, err
	}
	if err := r.tops(); err != nil {
		return nil, err
	}
	if err := r.mounts(); err != nil {
		return nil, err
	}
	if err := r.keepIn(); err != nil {
		return nil, err
	}
	r.environment()
	if !req.Builds {
		r.accounts()
	}
	if !req.ReadOnly {
		p.plan.Downgrades = append(p.plan.Downgrades, "what commands write to the image lies in layers of the cell's own, outside checkpoints and rollback")
	}
	if u := req.Settings.User; !req.Builds && u != "" && u != "root" && u != "0" && u != "0:0" && u != "root:root" {
		p.note("the image's user "+u, "is not used: commands run as "+req.User.Name+", the owner of the workspace", "")
	}
	plan, err := p.finish()
	if err != nil {
		return nil, err
	}
	plan.find, plan.rooted = nil, r
	return plan, nil
}

// rooted makes the plan of a directory. Of its planner it uses what decides on
// mounts of the host.
type rooted struct {
	*planner
	in  *tree // the image
	req RootedRequest
}

// checkDir refuses directories that no cell may see, as for any mount.
func (p *planner) checkDir(dir string) error {
	const op = "image.Rooted"
	name := KindDir + ":" + dir
	if !path.IsAbs(dir) {
		return cell.Errorf(cell.Invalid, op, "give an absolute path", "cannot use image %s: it is not absolute", name)
	}
	pl := p.t.resolve(dir)
	switch {
	case !pl.exists():
		return cell.Errorf(cell.NotFound, op, "name a directory that holds a root file system", "cannot use image %s: there is no such directory", name)
	case !pl.isDir():
		return cell.Errorf(cell.Invalid, op, "name a directory that holds a root file system; an archive is oci:FILE", "cannot use image %s: it is not a directory", name)
	case pl.path == "/":
		return cell.Errorf(cell.Denied, op, "use --image host: it shows the host without its secrets", "cannot use image %s: it is the whole host", name)
	}
	if why := ofKernel(dir, pl); why != "" {
		return cell.Errorf(cell.Denied, op, "name a directory that holds a root file system", "cannot use image %s: %s", name, why)
	}
	why := p.g.refuse(pl)
	if why == "" && p.holdsSource(pl.path) {
		why = "it holds the source"
	}
	if why != "" {
		return cell.Errorf(cell.Denied, op, "keep the root file system in a directory of its own", "cannot use image %s: %s", name, why)
	}
	return nil
}

// places says where the cell's own places lie, which the image's symlinks
// decide.
func (r *rooted) places() error {
	r.slots = map[string]slot{}
	at := func(p string) string { return r.in.resolve(p).path }
	r.plan.Home, r.plan.Tmp, r.plan.Workspaces, r.plan.Workdir = at(r.planner.req.Home), "/tmp", nil, at(r.source)
	for _, s := range r.sources {
		if at(s) != s && len(r.sources) > 1 {
			return cell.Errorf(cell.Unsupported, "image.Rooted", "use another image, or --image host", "cannot bring several directories into this image: its symlinks lead %s to %s", s, at(s))
		}
		r.plan.Workspaces = append(r.plan.Workspaces, at(s))
	}
	if r.planner.req.Workdir != "" {
		r.plan.Workdir = at(r.planner.req.Workdir)
	}
	for _, own := range append([]string{r.plan.Home}, r.plan.Workspaces...) {
		if own == "/" || slices.ContainsFunc(reservedInImages, func(s string) bool { return within(s, own) }) {
			return cell.Errorf(cell.Denied, "image.Rooted", "use another image, or --image host", "cannot use this image: its symlinks lead %s to %s", own, own)
		}
		r.own(own)
	}
	if r.req.Builds {
		r.plan.Tmp = BuildDir + "/tmp"
		r.own(r.plan.Tmp)
	} else {
		r.own("/tmp")
	}
	r.slots["/run"] = slot{Mount: cell.Mount{Kind: cell.Tmpfs, Target: "/run", Why: "empty"}}
	return nil
}

// reservedInImages are the places that are no targets, with what is below them.
var reservedInImages = []string{"/proc", "/dev", "/sys", "/run/pando", ownDir, "/oldroot"}

// tops shows what lies at the top of the image.
func (r *rooted) tops() error {
	dirs, theirs := 0, cellsOwn
	if r.req.Builds {
		theirs = BuildsOwn
	}
	for _, e := range r.in.list("/") {
		at := "/" + e.name
		if _, own := r.slots[at]; own || slices.Contains(theirs, e.name) || r.req.Builds && !e.mode.IsDir() { // which are in the root directory
			continue
		}
		switch {
		case e.mode.IsDir():
			r.slots[at] = r.layered(at, r.in.disk(at))
			dirs++
		case e.mode&os.ModeSymlink != 0 && e.text != "":
			r.slots[at] = slot{Mount: cell.Mount{Kind: cell.Link, Target: at, Source: e.text, Role: cell.RoleImage, Why: whyImage}}
		case e.mode.IsRegular():
			r.slots[at] = slot{Mount: cell.Mount{Kind: cell.Bind, Target: at, Source: r.in.disk(at), ReadOnly: true, Owned: true, Role: cell.RoleImage, Why: whyImage}}
		}
		if len(r.slots) > 4*maxTops || dirs > maxTops {
			return cell.Errorf(cell.Unsupported, "image.Rooted", "use an image with fewer names in /", "cannot use this image: it has more than %d directories at its top", maxTops)
		}
	}
	if dirs == 0 {
		return cell.Errorf(cell.Invalid, "image.Rooted", "name a directory that holds a root file system, with bin, etc, usr in it", "cannot use this image: there is no directory in %s", r.req.Dir)
	}
	if _, there := r.slots["/etc"]; !there {
		empty := filepath.Join(r.planner.req.EtcDir, "nothing")
		if err := os.MkdirAll(empty, 0o755); err != nil {
			return cell.Errorf(cell.Internal, "image.Rooted", "", "cannot prepare an empty /etc: %w", err)
		}
		r.slots["/etc"] = r.layered("/etc", empty)
	}
	return nil
}

// layered shows a directory of the image below a layer of the cell's own. With a root that is
// read-only the layer has what pando put there alone.
func (r *rooted) layered(at, disk string) slot {
	return slot{Mount: cell.Mount{Kind: cell.Overlay, Target: at, Lower: []string{disk}, ReadOnly: r.req.ReadOnly, Plain: r.req.Builds, Role: cell.RoleImage, Why: whyImage}}
}

// mounts adds what was asked for with --mount. Sources are the host's, and
// judged like everywhere; targets are the image's.
func (r *rooted) mounts() error {
	const op = "image.Rooted"
	if len(r.planner.req.Mounts) == 0 {
		return nil
	}
	r.empty = filepath.Join(r.planner.req.EtcDir, "empty")
	if err := os.MkdirAll(r.planner.req.EtcDir, 0o700); err != nil {
		return err
	}
	if f, err := os.OpenFile(r.empty, os.O_CREATE|os.O_WRONLY, 0o444); err == nil {
		f.Close()
	} else if !os.IsPermission(err) { // it is there already
		return err
	}
	for _, text := range r.planner.req.Mounts {
		a, err := r.askedSource(text)
		if err != nil {
			return err
		}
		pl, dst, writable := a.at, a.dst, a.writable
		at := r.in.resolve(dst).path
		for _, target := range []string{dst, at} {
			if why := r.refuseTargetIn(target); why != "" {
				return cell.Errorf(cell.Denied, op, "choose another target", "cannot mount at %s: %s", dst, why)
			}
		}
		if s, there := r.slots[at]; there && s.asked {
			return cell.Errorf(cell.Invalid, op, "", "cannot mount at %s twice", dst)
		}
		r.slots[at] = slot{asked: true, Mount: cell.Mount{Kind: cell.Bind, Target: at, Source: r.t.disk(pl.path), ReadOnly: !writable, Owned: true, Why: "--mount"}}
		if writable {
			r.plan.Downgrades = append(r.plan.Downgrades, "writable mount "+dst+" is outside rollback")
		}
		for _, hidden := range r.cover(pl.path, at, false, 0) {
			r.note(hidden, "is empty in the cell: it is a socket, or its name is a secret's", "")
		}
	}
	return nil
}

func (r *rooted) refuseTargetIn(dst string) string {
	for _, s := range reservedInImages {
		if within(s, dst) || within(dst, s) {
			return "it is or holds " + s + ", which is the cell's own"
		}
	}
	for at, s := range r.slots {
		if s.cells && within(dst, at) {
			return "it is or holds " + at + ", which is the cell's own"
		}
	}
	if s, ok := r.slots[dst]; ok && s.Kind == cell.Link {
		return "it is a link in the image"
	}
	return ""
}

// fromCaller are the variables that pass into every image: how to show text, and that no
// person watches. Variables with paths or tools of the host do not pass.
var fromCaller = []string{"COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "SOURCE_DATE_EPOCH", "DEBIAN_FRONTEND"}

const usualPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// environment is the image's, with a few of the caller's variables below it.
func (r *rooted) environment() {
	out := map[string]string{"PATH": usualPath}
	for _, name := range fromCaller {
		if v, ok := r.env[name]; ok && !strings.ContainsRune(v, 0) {
			out[name] = v
		}
	}
	for _, kv := range r.req.Settings.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" && !strings.ContainsRune(kv, 0) && (k != "PATH" || v != "") {
			out[k] = v
		}
	}
	r.tell(out)
	for _, name := range sortedKeys(out) {
		r.plan.Env = append(r.plan.Env, name+"="+out[name])
	}
	r.plan.Path = out["PATH"]
}

// accounts gives the cell's user a name in the image, and the files that the
// backend covers a place to be.
func (r *rooted) accounts() {
	u := r.planner.req.User
	passwd, group := r.text("/etc/passwd"), r.text("/etc/group")
	if name, home, ok := accountOf(passwd, u.UID); !ok {
		shell := "/bin/sh"
		if r.in.resolve("/bin/bash").isProgram() {
			shell = "/bin/bash"
		}
		id := strconv.Itoa(u.UID)
		r.seed("/etc/passwd", ended(passwd)+accountName(u.Name)+":x:"+id+":"+strconv.Itoa(u.GID)+"::"+fieldOf(u.Home)+":"+shell+"\n")
	} else if home != u.Home && u.Home != "" {
		r.seed("/etc/passwd", rehomed(passwd, name, fieldOf(u.Home)))
	}
	if _, _, ok := accountOf(group, u.GID); !ok {
		r.seed("/etc/group", ended(group)+accountName(u.Name)+":x:"+strconv.Itoa(u.GID)+":\n")
	}
	for _, at := range []string{"/etc/hosts", "/etc/hostname", "/etc/machine-id"} {
		if !r.in.lstat(at).isFile() {
			r.seed(at, "")
		}
	}
}

func (r *rooted) text(at string) string { return string(r.in.read(r.in.resolve(at).path, maxEtcFile)) }

// seed puts a file over the image. What is in another place by way of a symlink
// is left as it is.
func (r *rooted) seed(at, text string) {
	if r.in.resolve(path.Dir(at)).path == path.Dir(at) {
		r.plan.Seeds = append(r.plan.Seeds, Seed{Path: at, Text: text})
	}
}

func ended(s string) string {
	if s != "" && !strings.HasSuffix(s, "\n") {
		return s + "\n"
	}
	return s
}

// accountOf looks for a number in the lines of a passwd or group file.
func accountOf(text string, id int) (name, home string, ok bool) {
	for _, line := range strings.Split(text, "\n") {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(id) {
			if len(f) > 5 {
				home = f[5]
			}
			return f[0], home, true
		}
	}
	return "", "", false
}

// rehomed gives an account of a passwd file another home.
func rehomed(text, name, home string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if f := strings.Split(line, ":"); len(f) == 7 && f[0] == name {
			f[5] = home
			lines[i] = strings.Join(f, ":")
			break
		}
	}
	return strings.Join(lines, "\n")
}

// lookPath lists the files to try as a program. What the cell may have made
// itself is tried unseen.
func (r *rooted) lookPath(name, workdir string) ([]string, error) {
	const op = "image.LookPath"
	in := newTree(r.req.Dir)
	may := func(at string) bool {
		pl := in.resolve(at)
		top := "/"
		for t, s := range r.slots {
			if within(t, pl.path) && len(t) > len(top) && (s.cells || s.asked) {
				top = t
			}
		}
		return r.req.Used || top != "/" || pl.isProgram()
	}
	if strings.Contains(name, "/") {
		at := name
		if !path.IsAbs(at) {
			at = path.Join(workdir, at)
		}
		if !may(at) {
			return nil, cell.Errorf(cell.NoSuchBinary, op, "", "cannot run %s: there is no such file in the image", name)
		}
		return []string{at}, nil
	}
	var files []string
	dirs := strings.Split(r.plan.Path, ":")
	for _, dir := range dirs {
		if at := path.Join(dir, name); path.IsAbs(dir) && may(at) {
			files = append(files, at)
		}
	}
	if name == whyProgram {
		files = append(files, path.Join(TalkDir, whyProgram))
	}
	if name == "" || len(files) == 0 {
		return nil, cell.Errorf(cell.NoSuchBinary, op, "", "cannot run %s: not found in %s of the image", name, strings.Join(dirs, ", "))
	}
	return files, nil
}

// talk is Talk for an image.
func (r *rooted) talk(h *HostPlan, dir string) (lists []string) {
	in := newTree(r.req.Dir)
	bind := func(target, name string) {
		if !slices.ContainsFunc([]string{"/proc", "/dev", "/sys", "/oldroot"}, func(s string) bool { return within(s, target) }) {
			h.Insert(cell.Mount{Kind: cell.Bind, Target: target, Source: filepath.Join(dir, name), ReadOnly: true, Owned: true, Role: cell.RoleNetwork, Why: whyNetwork})
		}
	}
	bind(TalkDir, "")
	bind(in.resolve("/etc/resolv.conf").path, resolvFile)
	for name, places := range map[string][]string{bundleFile: bundles, storeFile: append(slices.Clone(javaStores), h.javaStore())} {
		for _, at := range places {
			if pl := in.resolve(at); at != "" && pl.isFile() {
				bind(pl.path, name)
			}
		}
	}
	for _, v := range trustVars {
		if at := h.getenv(v); path.IsAbs(at) {
			if pl := in.resolve(at); pl.isFile() && !slices.Contains(lists, pl.path) {
				lists = append(lists, pl.path)
			}
		}
		h.setenv(v, path.Join(TalkDir, bundleFile))
	}
	h.tellWhy()
	r.hosts(h, true)
	return lists
}

// hosts seeds what the image's resolvers go by: in a cell without a network the files as the last
// source of hosts (see nsswitch), and a resolv.conf for musl, which knows no such sources (see
// silentResolv); else as they are.
func (r *rooted) hosts(h *HostPlan, talks bool) {
	image := r.text("/etc/nsswitch.conf")
	if image == "" {
		image = nsswitch("files dns")
	}
	r.silent(h, "/etc/nsswitch.conf", image, filesLast(image), talks)
	r.silent(h, "/etc/resolv.conf", r.text("/etc/resolv.conf"), silentResolv, talks)
}

// silent seeds one of these files with its text for a cell without a network, unless a symlink
// leads elsewhere; in a cell that talks the seed is taken away.
func (r *rooted) silent(h *HostPlan, at, image, silent string, talks bool) {
	switch {
	case r.in.resolve(at).path != at || silent == image:
	case talks:
		h.Seeds = append(h.Seeds, Seed{Path: at, Instead: silent})
	default:
		h.Seeds = append(h.Seeds, Seed{Path: at, Text: silent})
	}
}

// filesLast makes the files the last source of hosts, where DNS is one.
func filesLast(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		rule, comment, commented := strings.Cut(strings.TrimSuffix(line, "\n"), "#")
		if f := strings.Fields(rule); len(f) > 1 && f[0] == "hosts:" && slices.Contains(f, "dns") && f[len(f)-1] != "files" {
			line = strings.TrimRight(rule, " \t") + " files\n"
			if commented {
				line = strings.TrimSuffix(line, "\n") + " #" + comment + "\n"
			}
		}
		out.WriteString(line)
	}
	return out.String()
}

// RootOf is the directory that a cell's root file system is made from, on the
// real disk: "/" for the host image.
func RootOf(mounts []cell.Mount) string {
	for _, m := range mounts {
		if m.Role == cell.RoleImage && m.Kind == cell.Overlay && len(m.Lower) > 0 {
			if top := m.Lower[len(m.Lower)-1]; path.Base(top) == path.Base(m.Target) {
				return path.Dir(top)
			}
		}
	}
	return "/"
}

// Inside follows a path of a cell through the symlinks of its image.
func Inside(root, at string) string { return newTree(root).resolve(at).path }
