package engine

import (
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// planKernel checks which kernel a request means for its cell's machine: the cell's,
// when there is one already.
func (e *Engine) planKernel(p *runPlan) error {
	const opName = "engine.StartRun"
	asked := kernelAt(p.req.Kernel, p.req.CallerDir)
	if p.cell != nil {
		p.kernel = p.cell.Setup.Kernel
	}
	switch {
	case asked == p.kernel || asked == "":
		return nil
	case p.cell != nil:
		return cell.Errorf(cell.Conflict, opName, "leave out --kernel, or choose another --cell", "cell %s boots %s", p.cell.Title(), orElse(p.kernel, "no kernel that was asked for"))
	}
	b, boots := p.backend.(backend.Booter)
	if !boots {
		return cell.Errorf(cell.Invalid, opName, "add --backend microvm, or leave out --kernel", "cannot boot a kernel: cells of backend %s have none of their own to choose", p.backend.Name())
	}
	p.kernel = asked
	return b.CheckKernel(asked)
}

// kernelAt makes the paths of a kernel, "IMAGE" or "IMAGE:MODULES", absolute, as far
// as it is known where the request comes from.
func kernelAt(kernel, dir string) string {
	if kernel == "" {
		return ""
	}
	paths := strings.SplitN(kernel, ":", 2)
	for i, p := range paths {
		if p != "" && !filepath.IsAbs(p) && dir != "" {
			paths[i] = filepath.Join(dir, p)
		}
	}
	return strings.Join(paths, ":")
}
