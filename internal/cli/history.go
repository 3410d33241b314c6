package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

func (a *app) historyCmd() *cobra.Command {
	return &cobra.Command{
		Use: "history [CELL]", Short: "Show a cell's checkpoints",
		Long: `Show a cell's checkpoints. Without a name it is the cell that pando diff shows, which
is named on stderr.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client.Cell(cmd.Context(), arg(args))
			if err != nil {
				return err
			}
			list, err := a.client.History(cmd.Context(), c.ID)
			if err != nil {
				return err
			}
			runs, err := a.client.Runs(cmd.Context(), &c.ID)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if len(args) == 0 {
					a.say("cell %s", c.Name)
				}
				t := a.newTable(w)
				for i := len(list) - 1; i >= 0; i-- {
					k := list[i]
					mark := " "
					if k.Head {
						mark = "●"
					}
					t.row(mark, fmt.Sprintf("@%d", k.Number), short(k.TreeDigest), ago(k.Created), marked(describe(k, runs), k.Isolation))
				}
				t.flush()
			})
		},
	}
}

// describe says how a checkpoint was made.
func describe(k api.Checkpoint, runs []api.Run) string {
	var words []string
	switch k.Kind {
	case "base":
		words = append(words, "imported from the source")
	case "before":
		words = append(words, "before "+k.Run)
	case "fork":
		words = append(words, "where the cell was forked")
	case "branch":
		words = append(words, "where the cell was branched")
	case "service":
		words = append(words, "with a checkpoint of the cell that it serves")
	case "template":
		words = append(words, "as the set-up left it")
	case "after":
		for _, r := range runs {
			if r.ID == k.Run {
				words = append(words, fmt.Sprintf("after %s (%s): %s", r.ID, r.Verdict, cut(strings.Join(r.Command, " "), 40)))
			}
		}
	}
	if k.Kind == "step" {
		words = append(words, "before: "+cut(strings.Join(strings.Fields(k.Message), " "), 60))
	} else if k.Turn > 0 {
		words = append(words, fmt.Sprintf("turn %d: %s", k.Turn, cut(strings.Join(strings.Fields(k.Message), " "), 60)))
	} else if k.Message != "" {
		words = append(words, k.Message)
	}
	if k.Memory {
		words = append(words, "with its memory")
	}
	if k.Kind != "base" && k.Kind != "fork" && k.Parent != k.Number-1 && k.Parent > 0 {
		words = append(words, fmt.Sprintf("from @%d", k.Parent))
	}
	if !k.Expires.IsZero() {
		words = append(words, "kept until "+k.Expires.Local().Format("Jan 2"))
	}
	return strings.Join(words, ", ")
}

func (a *app) treeCmd() *cobra.Command {
	return &cobra.Command{
		Use: "tree [CELL]", Short: "Draw a cell's family, or all families, as a tree", Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			nodes, err := a.client.Tree(cmd.Context(), arg(args), len(args) == 0)
			if err != nil {
				return err
			}
			return a.print(nodes, func(w io.Writer) {
				if len(nodes) == 0 {
					a.say("no cells yet: pando run -- COMMAND makes one")
				}
				for _, n := range nodes {
					fmt.Fprintln(w, nodeTitle(n))
					drawTree(w, n, "")
				}
			})
		},
	}
}

func nodeTitle(n api.TreeNode) string {
	title := n.Cell.Name + "  " + n.Cell.State
	if n.Cell.Template != "" {
		title = "template " + n.Cell.Template + "  " + n.Cell.State
	}
	if n.Cell.Verdict != "" {
		title += ", latest run " + n.Cell.Verdict
	}
	if i := n.Cell.Interpreter; i != nil {
		title += ", " + interpreterWord(i)
	}
	return marked(printable(title), n.Cell.Isolation)
}

// drawTree draws a cell's checkpoints below their parents, and the cells that were forked from
// each. An only child is drawn straight below its parent; several children are drawn as
// branches.
//
//	web  idle, latest run accepted
//	○ @1 5dcb2886f97b  the source
//	├─ api  idle
//	│  ● @1 5dcb2886f97b  where the cell was forked
//	└─ ● @2 e301a584f45f  after r-bf41f5fc6e059727
func drawTree(w io.Writer, n api.TreeNode, indent string) {
	kids := map[int][]api.Checkpoint{}
	known := map[int]bool{}
	for _, k := range n.Checkpoints {
		known[k.Number] = true
	}
	for _, k := range n.Checkpoints {
		up := k.Parent
		if !known[up] {
			up = 0 // its parent was removed, or is in another cell
		}
		kids[up] = append(kids[up], k)
	}
	forks := map[int][]api.TreeNode{}
	for _, c := range n.Children {
		at := 0
		if c.Cell.Parent != nil && known[c.Cell.Parent.Number] {
			at = c.Cell.Parent.Number
		}
		forks[at] = append(forks[at], c)
	}
	var below func(at int, indent string)
	below = func(at int, indent string) {
		left := len(kids[at]) + len(forks[at])
		straight := left == 1 && len(kids[at]) == 1
		branch := func() (line, next string) {
			left--
			switch {
			case straight:
				return indent, indent
			case left == 0:
				return indent + "└─ ", indent + "   "
			}
			return indent + "├─ ", indent + "│  "
		}
		for _, c := range alike(forks[at]) {
			line, next := branch()
			if len(c) > 1 {
				left -= len(c) - 1
				if left == 0 {
					line = indent + "└─ "
				}
				fmt.Fprintln(w, line+alikeTitle(c))
				continue
			}
			c := c[0]
			fmt.Fprintln(w, line+nodeTitle(c))
			drawTree(w, c, next)
		}
		for _, k := range kids[at] {
			line, next := branch()
			fmt.Fprintln(w, line+checkpointTitle(k))
			below(k.Number, next)
		}
	}
	below(0, indent)
}

func checkpointTitle(k api.Checkpoint) string {
	mark := "○"
	if k.Head {
		mark = "●"
	}
	text := fmt.Sprintf("%s @%d %s", mark, k.Number, short(k.TreeDigest))
	switch {
	case k.Message != "":
		text += "  " + k.Message
	case k.Kind == "base":
		text += "  the source"
	case k.Run != "":
		text += "  " + k.Kind + " " + k.Run
	}
	switch {
	case k.Message != "":
	case k.Kind == "template":
		text += "  as the set-up left it"
	case k.Kind == "branch":
		text += "  where it was branched"
	}
	if k.Memory {
		text += "  with its memory"
	}
	if !k.Expires.IsZero() {
		text += "  (kept until " + k.Expires.Local().Format("Jan 2") + ")"
	}
	return marked(printable(text), k.Isolation)
}

// manyAlike is the number of cells with equal names but for digits from which they share one
// line.
const manyAlike = 4

// alike groups cells that have no runs, no children and one checkpoint. The order of the first
// of each group stays.
func alike(list []api.TreeNode) (groups [][]api.TreeNode) {
	at := map[string]int{}
	for _, n := range list {
		c := n.Cell
		key := ""
		if len(n.Children) == 0 && len(n.Checkpoints) == 1 && c.Runs == 0 {
			key = c.State + " " + c.Isolation + " " + interpreterWord(c.Interpreter) + " " + n.Checkpoints[0].TreeDigest
		}
		i, ok := at[key]
		if !ok || key == "" {
			at[key] = len(groups)
			groups = append(groups, nil)
			i = len(groups) - 1
		}
		groups[i] = append(groups[i], n)
	}
	for i := 0; i < len(groups); i++ {
		if g := groups[i]; len(g) > 1 && len(g) < manyAlike {
			var single [][]api.TreeNode
			for _, n := range g {
				single = append(single, []api.TreeNode{n})
			}
			groups = slices.Replace(groups, i, i+1, single...)
			i += len(g) - 1
		}
	}
	return groups
}

// alikeTitle is the line of a group of similar cells.
func alikeTitle(g []api.TreeNode) string {
	var names []string
	for _, n := range g {
		names = append(names, n.Cell.Name)
	}
	slices.SortFunc(names, cell.CompareNames)
	if len(names) > 6 {
		names = append(append(names[:3:3], "…"), names[len(names)-1])
	}
	title := plural(len(g), "cell") + "  " + g[0].Cell.State
	if i := g[0].Cell.Interpreter; i != nil {
		title += ", " + interpreterWord(i)
	}
	return marked(printable(title+": "+strings.Join(names, " ")), g[0].Cell.Isolation)
}
