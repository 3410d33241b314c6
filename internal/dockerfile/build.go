package dockerfile

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/workspace"
)

// Config is what a build needs of its caller.
type Config struct {
	Images *oci.Store
	Name   string // of the Dockerfile, for people and for the images that are made
	File   string // path of the Dockerfile in its context
	// Image returns the image of a reference.
	Image func(ctx context.Context, ref string) (oci.Image, error)
	// Use is told each image that the build needs until it is over.
	Use func(id cell.Digest)
	// Context imports the context. It is called once, when the first file of it is copied.
	Context func(ctx context.Context) (Context, error)
	// Plan says that nothing is to be made: what is not kept is NotFound.
	Plan bool
	// Run executes a command in a cell that is made from an image, and gives take what it changed there, with the id of
	// its run. It fails where the command does.
	Run func(ctx context.Context, on *oci.Image, r *Run, take func(run string, write func(*tar.Writer) error) error) error
	// Report tells how far the build is: a step of so many, and what it is.
	Report func(step, steps int, text string)
}

// A Context is the directory of a Dockerfile, as it was imported.
type Context struct {
	Side   workspace.Side
	Hidden []string // paths that can't be copied, with what is below them
}

// version is part of each step's identity: another one when the same instruction makes another layer.
const version = "pando dockerfile step 1\n"

// Build makes the image of a stage, or of the last one for "". Steps that are kept are not made again. Errors name their
// line.
func (f *File) Build(ctx context.Context, c Config, target string) (oci.Image, error) {
	last := len(f.stages) - 1
	if target != "" {
		if last = f.stageOf(target); last < 0 {
			return oci.Image{}, cell.Errorf(cell.NotFound, "dockerfile.Build", "it has "+f.stageNames(), "cannot build stage %s: the Dockerfile has none of that name", cell.Clip(target))
		}
	}
	f.expanded = 0
	b := &build{f: f, c: c, made: map[int]*built{}}
	b.count(last, map[int]bool{})
	out, err := b.stage(ctx, last)
	if err != nil {
		return oci.Image{}, err
	}
	if out.image == nil {
		return oci.Image{}, cell.Errorf(cell.Invalid, "dockerfile.Build", "copy files into it", "cannot build the Dockerfile: its image has no files")
	}
	// What is said of commands in the image is part of its identity; the layers are those of the last step.
	img := oci.Image{Env: out.set.Env, User: out.set.User, Workdir: out.set.Workdir, Shell: out.set.shell, OnBuild: out.set.triggers, Service: out.set.service, Made: &oci.Made{From: out.image.ID, Step: "its settings", Ref: c.Name}}
	img.ID = b.id(out.image, "settings", fmt.Sprintf("%q %q %q %q %q %q %q %d %q %q %q %t", img.Env, img.Shell, img.OnBuild, img.User, img.Workdir,
		img.Service.Entrypoint, img.Service.Command, img.Service.Ports, img.Service.Volumes, img.Service.StopSignal, img.Service.Ready, img.Service.ReadyShell))
	err = b.derive(ctx, out, img, nil)
	return *out.image, err
}

func (f *File) stageNames() string {
	var names []string
	for _, s := range f.stages {
		if s.name != "" {
			names = append(names, s.name)
		}
	}
	if names == nil {
		return "no named stages"
	}
	return strings.Join(names, ", ")
}

// build is one build under way.
type build struct {
	f     *File
	c     Config
	made  map[int]*built
	side  *contextFiles
	step  int // of steps
	steps int
	// triggered is how many instructions of ONBUILD there were, and layers how many layers.
	triggered, layers int
}

// built is a stage that was built.
type built struct {
	image *oci.Image // nil: it has no files
	set   settings
}

// count counts the steps of a stage and of those that it needs.
func (b *build) count(n int, seen map[int]bool) {
	if n < 0 || seen[n] {
		return
	}
	seen[n] = true
	s := &b.f.stages[n]
	b.count(s.on, seen)
	b.steps += len(s.steps)
	for _, c := range s.steps {
		if on, ok := b.f.from[c]; ok {
			b.count(on, seen)
		}
	}
}

// stage builds a stage, once.
func (b *build) stage(ctx context.Context, n int) (*built, error) {
	if out := b.made[n]; out != nil {
		return out, nil
	}
	s := &b.f.stages[n]
	out := &built{}
	switch {
	case s.on >= 0:
		base, err := b.stage(ctx, s.on)
		if err != nil {
			return nil, err
		}
		*out = *base
	case s.image != "scratch":
		img, err := b.image(ctx, s.image)
		if err != nil {
			return nil, atLine(s.line, err)
		}
		out.image = &img
		out.set = settings{Env: slices.Clone(img.Env), User: img.User, Workdir: img.Workdir, shell: img.Shell, triggers: img.OnBuild, service: img.Service}
		if err := bounded(out.set.vars()); err != nil {
			return nil, invalid(s.line, fmt.Errorf("cannot use image %s: %w", cell.Clip(s.image), err))
		}
	}
	if b.triggered += len(out.set.triggers); b.triggered > maxSteps {
		return nil, unsupported(s.line, "use another image", "there are more than %d ONBUILD instructions", maxSteps)
	}
	triggers, err := b.f.triggers(s.line, out.set.triggers)
	if err != nil {
		return nil, err
	}
	out.set.triggers, out.set.commanded = nil, false
	b.steps += len(triggers)
	out.set.args = maps.Clone(out.set.args) // of the stage that it continues
	if out.set.args == nil {
		out.set.args = map[string]string{}
	}
	var group *copies // what the next layer has of an instruction that copies, and of WORKDIR before it
	var texts []string
	first := 0 // line of the group
	flush := func() (err error) {
		if group != nil && len(group.items) > 0 {
			err = b.copied(ctx, out, group, strings.Join(texts, "; "))
		}
		if group, texts = nil, nil; err != nil {
			err = atLine(first, err)
		}
		return err
	}
	for _, c := range slices.Concat(triggers, s.steps) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		line := lineOf(c)
		b.step++
		todo, err := b.f.next(c, &out.set)
		if err != nil {
			return nil, err
		}
		b.c.Report(b.step, b.steps, textOf(c))
		if todo.run != nil {
			if err := flush(); err != nil {
				return nil, err
			}
			if err := b.run(ctx, out, todo.run); err != nil {
				return nil, atLine(line, err)
			}
			continue
		}
		if todo.copy == nil && todo.dir == "" {
			continue
		}
		if group == nil {
			below, err := b.filesOf(out.image)
			if err != nil {
				return nil, err
			}
			group, first = newCopies(ctx, below), line
			group.flush = func() (files, error) {
				if err := b.copied(ctx, out, group, strings.Join(texts, "; ")); err != nil {
					return nil, err
				}
				return b.filesOf(out.image)
			}
		}
		texts = append(texts, textOf(c))
		if todo.dir != "" {
			err = group.makeFolder(todo.dir)
		} else if err = b.copy(ctx, group, todo.copy); err == nil {
			err = flush() // the next one sees what this one made
		}
		if err != nil {
			return nil, atLine(line, err)
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	b.made[n] = out
	return out, nil
}

// image finds an image, which is kept until the build is over.
func (b *build) image(ctx context.Context, ref string) (oci.Image, error) {
	img, err := b.c.Image(ctx, ref)
	if err != nil {
		return img, err
	}
	b.c.Use(img.ID)
	_, err = b.c.Images.Confirm(img.ID)
	return img, err
}

// filesOf opens the files of an image; nil is one without.
// They are closed by the garbage collector.
func (b *build) filesOf(img *oci.Image) (files, error) {
	if img == nil {
		return nil, nil
	}
	root, err := os.OpenRoot(img.Root)
	if err != nil {
		return nil, err
	}
	return &imageFiles{root, img.OneID}, nil
}

// copy adds what an instruction copies to a layer.
func (b *build) copy(ctx context.Context, group *copies, k *copying) error {
	var src files
	var of cell.Digest
	switch {
	case k.on >= 0:
		from, err := b.stage(ctx, k.on)
		if err != nil {
			return err
		}
		if src, err = b.filesOf(from.image); err != nil {
			return err
		}
		if src == nil {
			return wrong("the stage it copies from has no files")
		}
		of = from.image.ID
	case k.image != "":
		img, err := b.image(ctx, k.image)
		if err != nil {
			return err
		}
		if src, err = b.filesOf(&img); err != nil {
			return err
		}
		of = img.ID
	case len(k.sources) > 0:
		if b.side == nil {
			context, err := b.c.Context(ctx)
			if err != nil {
				return err
			}
			if b.side, err = newContext(context, b.c.File); err != nil {
				return err
			}
		}
		src = b.side
	}
	return group.add(k, src, of, func(chown string) (uid, gid int, err error) { return accounts(group.below, chown) })
}

// copied makes a layer of copies.
func (b *build) copied(ctx context.Context, out *built, group *copies, text string) error {
	h := sha256.New()
	group.digest(h)
	img := oci.Image{Made: &oci.Made{Step: text, Ref: b.c.Name}}
	img.ID = b.id(out.image, "copy", string(h.Sum(nil)))
	return b.derive(ctx, out, img, func(w *tar.Writer) error { return group.write(ctx, w) })
}

// run makes the layer of a RUN, unless it is kept.
func (b *build) run(ctx context.Context, out *built, r *Run) error {
	if out.image == nil {
		return wrong("RUN needs an image with a shell: there are no files yet")
	}
	img := oci.Image{Made: &oci.Made{Step: r.Text, Ref: b.c.Name}, ID: b.id(out.image, "run", r.identity())}
	b.c.Use(img.ID)
	if have, err := b.c.Images.Confirm(img.ID); err == nil {
		b.c.Images.Use(img.ID)
		out.image = &have
		return nil
	}
	if b.c.Plan {
		return notMade(r.Text)
	}
	return b.c.Run(ctx, out.image, r, func(run string, write func(*tar.Writer) error) error {
		img.Made.Run = run
		return b.derive(ctx, out, img, write)
	})
}

func notMade(step string) error {
	return cell.Errorf(cell.NotFound, "dockerfile.Build", "the first run makes it", "%s is not made yet", cell.Clip(step))
}

// identity is what the layer of a RUN is known by.
func (r *Run) identity() string {
	return fmt.Sprintf("%q %q %q %v", r.Command, r.Env, r.Workdir, r.Offline)
}

// derive makes an image of the present one and a layer.
func (b *build) derive(ctx context.Context, out *built, img oci.Image, write func(*tar.Writer) error) error {
	if out.image != nil {
		img.Made.From = out.image.ID
	}
	if b.layers++; b.layers > maxSteps {
		return cell.Errorf(cell.Unsupported, "dockerfile.Build", "unpack fewer archives", "it makes more than %d layers", maxSteps)
	}
	b.c.Use(img.ID)
	if _, err := b.c.Images.Get(img.ID); b.c.Plan && err != nil {
		return notMade(img.Made.Step)
	}
	made, err := b.c.Images.Derive(ctx, out.image, img, write)
	if err == nil {
		out.image = &made
	}
	return err
}

// id is the identity of a step over an image.
func (b *build) id(on *oci.Image, kind, what string) cell.Digest {
	var below cell.Digest
	if on != nil {
		below = on.ID
	}
	return cell.Sum(fmt.Appendf(nil, "%s%s\n%s\n%s", version, below, kind, what))
}

// accounts finds the numbers of a user and a group, by the accounts of an image.
func accounts(f files, chown string) (uid, gid int, err error) {
	if chown == "" {
		return 0, 0, nil
	}
	user, group, both := strings.Cut(chown, ":")
	if uid, gid, err = account(f, "etc/passwd", user); err != nil || !both {
		return uid, gid, err
	}
	gid, _, err = account(f, "etc/group", group)
	return uid, gid, err
}

// maxAccounts bounds a file of accounts, in bytes.
const maxAccounts = 1 << 20

// account finds a name, or a number, in a file of accounts: its number, and, of a user, its group.
func account(f files, file, name string) (id, group int, err error) {
	if id, err = strconv.Atoi(name); err == nil {
		if id < 0 {
			return 0, 0, wrong("there is no user %d", id)
		}
		return id, id, nil
	}
	unknown := wrong("--chown: the image's /%s has no %s", file, cell.Clip(name))
	if f == nil {
		return 0, 0, unknown
	}
	real, i, err := resolve(f, file)
	if err != nil || i.kind != 0 || i.size > maxAccounts {
		return 0, 0, unknown
	}
	r, err := f.open(real, i)
	if err != nil {
		return 0, 0, err
	}
	defer r.Close()
	text, err := readAll(r)
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(text) {
		p := strings.Split(strings.TrimSpace(line), ":")
		if len(p) < 3 || p[0] != name {
			continue
		}
		if id, err = strconv.Atoi(p[2]); err != nil {
			return 0, 0, unknown
		}
		if len(p) > 3 {
			group, _ = strconv.Atoi(p[3])
		}
		return id, group, nil
	}
	return 0, 0, unknown
}

// atLine says in which line of the Dockerfile something failed.
func atLine(line int, err error) error {
	_, there := errors.AsType[located](err)
	switch kind := cell.KindOf(err); {
	case there, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), kind == cell.Interrupted:
		return err
	case kind == "", kind == cell.Internal:
		return located{fmt.Errorf("line %d of the Dockerfile: %w", line, err)}
	default:
		return located{cell.Errorf(kind, "dockerfile.Build", cell.HintOf(err), "line %d of the Dockerfile: %w", line, err)}
	}
}

// wrong is the error for what a Dockerfile says.
func wrong(format string, args ...any) error {
	return cell.Errorf(cell.Invalid, "dockerfile.Build", "", format, args...)
}
