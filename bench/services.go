package bench

import (
	"context"
	"fmt"
	"strings"
)

var servicesAxis = Axis{
	Name:    "services",
	About:   "a cell with a service: until a command has its answer, forks, and a step back of both",
	measure: measureServices,
}

const (
	servicesReady = "first answer"
	servicesForks = "3 forks"
	servicesUndo  = "undo of both"
)

// answering is a service that keeps a count in its folder, and asking has it count.
const (
	answering = `import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        try: n = int(open("n").read()) + 1
        except OSError: n = 1
        open("n", "w").write(str(n))
        self.send_response(200); self.end_headers(); self.wfile.write(str(n).encode())
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", %d), H).serve_forever()`
	asking = `import sys, time, urllib.request
for _ in range(500):
    try: print(urllib.request.urlopen("http://%s:%d/", timeout=5).read().decode()); break
    except OSError: time.sleep(0.01)
else: sys.exit(1)`
	answeringPort = 7070
)

func measureServices(ctx context.Context, l *lab, out *AxisResult) error {
	inst, err := l.install()
	if err != nil {
		return err
	}
	defer inst.close(ctx)
	p := l.find(ctx, "python3")
	if p.why != "" {
		out.absent("python3", p.why)
		return nil
	}
	dir, err := l.tree(100, 100)
	if err != nil {
		return err
	}
	ask := []string{"python3", "-c", fmt.Sprintf(asking, "count", answeringPort)}
	ours := contestant{name: byCommand, ours: true, command: "pando run --service count=host… --cell NAME; fork -n 3; undo", round: func(ctx context.Context, r *recorder) error {
		name := fmt.Sprint("served-", r.n)
		do := func(args ...string) error { return all(ctx, inst.pando(dir, args...)) }
		run := []string{"run", "--cell", name, "--service", "count=host python3 -c '" + fmt.Sprintf(answering, answeringPort) + "'"}
		if err := r.time(servicesReady, func() error { return do(append(append(run, "--"), ask...)...) }); err != nil {
			return err
		}
		if err := r.time(servicesForks, func() error { return do("fork", name, "-n", "3", "--name", name) }); err != nil {
			return err
		}
		if err := do(append([]string{"run", "--cell", name, "--"}, ask...)...); err != nil {
			return err
		}
		if err := r.time(servicesUndo, func() error { return do("undo", name) }); err != nil {
			return err
		}
		said, err := inst.pando(dir, append([]string{"run", "--cell", name, "--"}, ask...)...).run(ctx)
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(said)); got != "2" {
			return fmt.Errorf("the service answered %q after undo, for 2", got)
		}
		return do("rm", "--yes", name, name+"-1", name+"-2", name+"-3")
	}}
	host := contestant{name: "host", against: byCommand, command: "the same two programs on the host",
		lacks: []string{"no isolation, of either", "no checkpoint, fork or undo"},
		round: func(ctx context.Context, r *recorder) error {
			at, err := l.fresh("served")
			if err != nil {
				return err
			}
			const port = answeringPort + 1
			return r.time(servicesReady, func() error {
				return all(ctx, command{dir: at, args: []string{"sh", "-c", `"$0" -c "$1" & "$0" -c "$2"; code=$?; kill $!; exit $code`,
					p.path, fmt.Sprintf(answering, port), fmt.Sprintf(asking, "127.0.0.1", port)}})
			})
		}}
	return l.hold(ctx, out, contest{contestants: []contestant{ours, host}, cases: []Case{
		{Name: servicesReady, What: "a new cell with a service in Python, until a command in the cell has its answer and is over"},
		{Name: servicesForks, What: "of a cell with its service, each with its own"},
		{Name: servicesUndo, What: "of a run that had the service write: the files of both as before"},
	}})
}
