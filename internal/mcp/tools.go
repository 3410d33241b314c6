package mcp

// addTools registers what agents can do.
func (s *Server) addTools() {
	add(s, "create", "Make a cell", makes, "Make a cell: an isolated place with a copy of a directory, which stays as it is. With template it begins with that template's interpreter and memory.", s.create)
	add(s, "list", "List cells, templates or runs", looks, "List the cells, templates or runs there are, newest first.", s.list)
	add(s, "show", "Show a cell, template or run", looks, "Show all about a cell (with its checkpoints), a template, or a run.", s.showTool)
	add(s, "exec", "Run a command in a cell", changes, "Run a command in a cell and wait for its end. What it changed stays in the cell, whatever its exit code; checkpoint before, to be able to go back.", s.exec)
	add(s, "eval", "Evaluate code in a cell", changes, "Evaluate code in a cell's interpreter, which is started if there is none. Variables, modules and open files last from one evaluation to the next.", s.eval)
	add(s, "run", "Run a command as a governed run", makes, "Run a command as a governed run: checkpoint, command, check, verdict, signed receipt. A failure is rolled back by itself. A success waits for the user to take it over.", s.run)
	add(s, "read_file", "Read a file in a cell", looks, "Read a file of a cell, or a part of it.", s.readFile)
	add(s, "write_file", "Write a file in a cell", changes, "Write a file in a cell.", s.writeFile)
	add(s, "list_files", "List files in a cell", looks, "List a directory of a cell.", s.listFiles)
	add(s, "fork", "Fork a template or a cell", makes, "Make new cells: out of a warm template with its memory (and have each evaluate or run something), or out of a cell with its files as of a checkpoint.", s.fork)
	add(s, "branch", "Branch a running cell", makes, "Copy a running cell with its interpreter as it is now: variables, modules and files of one instant. The cell itself goes on.", s.branch)
	add(s, "checkpoint", "Checkpoint a cell", makes, "Make the present state of a cell a checkpoint to come back to.", s.checkpoint)
	add(s, "restore", "Restore a checkpoint", changes, "Bring a cell back to a checkpoint. What runs in it ends.", s.restore)
	add(s, "diff", "Show what changed", looks, "Show what a run changed, or what differs between two states of a cell.", s.diff)
	add(s, "policy_why", "Ask the policy", looks, "Say what the policy makes of a request to the network or of a program, which rule decides, and what would allow it.", s.why)
	add(s, "receipt", "Show a receipt", looks, "Show the signed receipt of a run: what ran, how it was isolated, what it changed, and what was not enforced.", s.receipt)
	add(s, "read", "Read a resource", looks, "Read a part of a resource (pando://…), such as the rest of a long output.", s.read)
	add(s, "kill", "Remove a cell", changes, "End what runs in a cell and remove it with its files and checkpoints; with keep, only end what runs.", s.kill)
}
