package finding

import (
	"strings"

	"github.com/pando-dev/pando/api"
)

const (
	high, medium, low, info = api.SeverityHigh, api.SeverityMedium, api.SeverityLow, api.SeverityInfo

	seeFile   = "pando diff RUN -- PATH"
	seeRun    = "pando show RUN"
	seeEvents = "pando events RUN --kind decision,flow"
	seeOutput = "pando logs RUN"
	seeCalls  = "pando report RUN"
)

// see puts a run and a path into a command.
func see(command, run, path string) string {
	return strings.NewReplacer("RUN", run, "PATH", quoted(path)).Replace(command)
}

var rules = []Rule{
	{"held-back", high, "controls what runs on the host", "accept --apply leaves it out unless it is asked for by name: git, a shell or an editor would execute what it says, with your rights", seeFile, heldBack},
	{"ci-changed", high, "continuous integration changed", "it runs with the project's secrets, and decides what counts as tested", seeFile, ciChanged},
	{"hook-changed", medium, "commit hooks changed", "they run on each developer's machine at the next commit", seeFile, hookChanged},
	{"agent-config-changed", medium, "what agents read or run changed", "the next agent that works here obeys it", seeFile, agentConfigChanged},
	{"editor-config-changed", medium, "what an editor runs changed", "tasks and settings of a workspace can start programs when it is opened", seeFile, editorConfigChanged},
	{"build-changed", low, "build files changed", "they run when the project is built", seeFile, buildChanged},
	{"mode-widened", low, "a file became executable", "what is executable is run by name", seeFile, modeWidened},
	{"executable-added", low, "an executable file was added", "what is executable is run by name", seeFile, executableAdded},
	{"binary-added", medium, "a binary file was added", "a diff does not show what is in it", seeFile, binaryAdded},
	{"binary-changed", low, "a binary file changed", "a diff does not show what is in it", seeFile, binaryChanged},
	{"large-file-added", low, "a large file was added", "it stays in the history of the repository", seeFile, largeAdded},
	{"minified-added", medium, "code that no person can read was added", "it can't be reviewed; what it was made from can", seeFile, minifiedAdded},
	{"link-outside", high, "a link leads out of the source", "what follows it reads or writes elsewhere on the host", seeFile, linkOutside},
	{"submodule-changed", medium, "submodules changed", "their code comes from another repository", seeFile, submoduleChanged},
	{"attributes-changed", medium, "git's attributes changed", "they can start filters, and hide changes from diffs", seeFile, attributesChanged},
	{"ignore-changed", medium, "files were hidden from git", "git ignores more than before: what is there is in no diff and no commit", seeFile, ignoreChanged},
	{"ignored-changed", info, "files that git ignores changed", "they are in no patch; accept leaves them out", "pando diff RUN --ignored --stat", ignoredChanged},
	{"licence-changed", low, "a licence changed", "it says what may be done with the code", seeFile, licenceChanged},
	{"many-deleted", medium, "many files were deleted", "look whether that was asked for", "pando diff RUN --stat", manyDeleted},
	{"secret-added", high, "text in the form of a credential was added", "what is committed is known to all that have the repository, and stays in its history", seeFile, secretAdded},
	{"hidden-text", high, "text that does not look like what it is was added", "characters that change the direction of text, or are not seen, have reviewers read other code than runs", seeFile, hiddenText},
	{"invisible-text", low, "text that is not seen was added", "a line has more than it shows; in texts for people that is often meant", seeFile, invisibleText},
	{"test-deleted", high, "a file of tests was deleted", "what it tested is tested no more", seeFile, testDeleted},
	{"tests-fewer", high, "there are fewer tests", "a check that passes says less than before", seeFile, testsFewer},
	{"test-skipped", high, "tests are skipped", "a check that passes says less than before", seeFile, testSkipped},
	{"assertions-fewer", medium, "tests assert less", "a check that passes says less than before", seeFile, assertionsFewer},
	{"clock-set", medium, "tests or builds get another clock or locale", "a check that passes there may fail in another zone, language or year", seeFile, clockSet},
	{"expectations-changed", low, "recorded expectations of tests changed", "the check compares with what is recorded there", seeFile, expectationsChanged},
	{"dependency-added", medium, "a dependency was added", "its code runs with that of the project, and its authors' later versions do", seeFile, dependencyAdded},
	{"dependency-source", high, "a dependency comes from elsewhere", "it is not the package that its name says in the registry", seeFile, dependencySource},
	{"install-script", high, "a script runs at installation", "it runs on each machine that installs the project or the package, before anything of it is used", seeFile, installScript},
	{"prepare-script", medium, "a script runs when the project is prepared", "npm runs it at an installation from the repository, and before a package is made", seeFile, prepareScript},
	{"lock-differs", medium, "lock file and manifest differ", "what is installed is not what the manifest says, or is chosen anew on each machine", seeFile, lockDiffers},
	{"registry-changed", high, "where packages come from changed", "all dependencies are fetched from there", seeFile, registryChanged},
	{"tunnel", high, "a name looks like a tunnel or a collector", "such services carry data out, or a way in", seeEvents, tunnel},
	{"denied-repeated", medium, "a denied host was asked for many times", "something in the run depends on it, or looks for a way out", seeEvents, deniedRepeated},
	{"denied", low, "a host was denied", "something in the run wanted it", seeEvents, denied},
	{"network-tried", low, "the network was looked for, and there was none", "something in the run wanted it", seeEvents, networkTried},
	{"verdict-imitated", high, "the output claims what did not happen", "the exit code is the outcome; what is written is the command's word", seeOutput, verdictImitated},
	{"reported-check-differs", medium, "the agent reports that the check succeeded, and it failed", "what the agent says of its work is not what was seen of it", seeCalls, reportedCheckDiffers},
	{"reported-edit-missing", low, "an edit is reported of a file that is as it was", "the agent says that it wrote what is not in the result, or something changed it back", seeCalls, reportedEditMissing},
	{"unreported-change", low, "a file changed that no tool call names", "the agent reports edits alone, and none of this file: something else wrote it, or it does not say all", seeFile, unreportedChange},
	{"reported-gap", low, "tool calls are not reported completely", "the agent used a model, and its own account of what it did is missing or broken", seeCalls, reportedGap},
	{"output-hides", medium, "the output hides text on a terminal", "what is seen there is not all that was written", seeOutput, outputHides},
	{"secret-found", high, "the value of a lent credential was found", "it is where a cell should never have it", seeRun, secretFound},
	{"not-isolated", high, "the run was not isolated", "the command could read and change what its user can", seeRun, notIsolated},
	{"weaker", medium, "weaker than by default", "it was asked for: look whether it was needed", seeRun, weaker},
	{"limit-reached", medium, "a limit was reached", "what was not finished is not in the result", seeRun, limitReached},
	{"process-left", low, "processes were left running", "they were ended with the command, in the middle of whatever they did", seeRun, processLeft},
	{"output-incomplete", low, "not all of the output was kept", "the end of it is not in the evidence", seeOutput, outputIncomplete},
	{"policy-unread", high, "the policy of the run can't be read", "what it says of findings was not looked for", seeRun, policyUnread},
	{"source-moved", info, "the source changed during the run", "the result was made from what it was before", seeRun, sourceMoved},
	{PinnedChanged, high, "what is pinned was changed", "it judges the result: the check had it as it was before, and an accept brings the change", seeRun, pinnedChanged},
	{CheckChanged, high, "the check was changed by what it judged", "it may pass since it says less than before: --pin has a check run as it was", seeRun, checkChanged},
	{"unchecked", info, "no check was made of the result", "the exit code is that of the command alone: --check says what has to hold", seeRun, noCheck},
}
