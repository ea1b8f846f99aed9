package main

import (
	"slices"

	"github.com/lockgate/lockgate/internal/config"
)

// Commands that have other names too.
const (
	helpCommand    = "help"
	versionCommand = "version"
)

// spec is one command as help, completion and the dispatcher know it.
type spec struct {
	name     string
	group    string
	usage    []string // what follows "lockgate"
	short    string
	about    string // paragraphs, each on one line
	options  []option
	ordinary bool           // signals mean to it what they mean to any program
	startsAt bool           // it takes a command line of others, whose options are not ours
	reads    config.Command // as which it reads settings; empty for none
	exits    []exit
	examples []string
	run      func(p *program, args []string) int
}

// exit is an exit code as help shows it.
type exit struct{ code, meaning string }

// Groups of commands, in the order of help.
const (
	groupRun  = "Run a command while the lock is held"
	groupLook = "See who holds a lock, and take it away"
	groupSet  = "Set up"
	groupSelf = "About lockgate"
)

func groups() []string { return []string{groupRun, groupLook, groupSet, groupSelf} }

// Exit codes that mean the same for several commands.
func exitUsage() exit  { return exit{"64", "wrong command line"} }
func exitConfig() exit { return exit{"78", "wrong settings; each problem is listed"} }
func exitStore() exit {
	return exit{"69", "the database could not be reached or refused us, or the table is missing"}
}
func exitFault() exit { return exit{"70", "a fault in lockgate"} }

// exitsOfCMD are those of run and exec.
func exitsOfCMD(unavailable string) []exit {
	return []exit{
		{"CMD's", "CMD's own code, unchanged; 128+n when signal n ended it"},
		{"0", "also when CMD was skipped because the lock is busy"},
		exitUsage(),
		{"69", unavailable},
		exitFault(),
		{"75", "the lock is busy, and lockgate was told to fail, or has waited long enough"},
		{"76", "the lock was lost, or was held as long as is allowed, and CMD was stopped"},
		exitConfig(),
		{"126, 127", "CMD is not executable, was not found"},
		{"128+n", "told to stop by signal n before CMD had started"},
	}
}

// specs are all commands, in the order of help.
func specs() []spec {
	return []spec{
		{
			name: "run", group: groupRun, startsAt: true, reads: config.Run,
			usage: []string{"run [--] CMD [ARG...]"},
			short: "take the lock, run CMD, release",
			about: "Takes the lock, runs CMD while it is held, and releases it when CMD and all that it started has ended. " +
				"When the lock is busy, CMD is skipped, unless you choose to wait or to fail. If the lock cannot be renewed, CMD is stopped before anybody else can get it.\n" +
				"CMD finds the lock's name in LOCKGATE_LOCK and a number that only grows in LOCKGATE_TOKEN. What stands after CMD is CMD's.",
			exits: exitsOfCMD("the database could not be reached or refused us"),
			examples: []string{
				"LOCKGATE_NAME=nightly LOCKGATE_DB_URL=mysql://user:password@db.example/jobs lockgate run -- ./job.sh --all",
			},
			run: (*program).runRun,
		},
		{
			name: "sidecar", group: groupRun, reads: config.Sidecar,
			usage: []string{"sidecar"},
			short: "hold the lock for a main in another container of the pod",
			about: "Waits in a container of its own until lockgate exec, in main's container, asks for the lock. Then it takes the lock, renews it, and releases it when main has ended. " +
				"The two share a directory. Every outcome but wrong settings is handed to exec.",
			exits: []exit{
				{"0", "ended by SIGTERM; a plain sidecar also when main has ended"},
				exitUsage(), exitFault(),
				{"78", "wrong settings, or nobody asked for the lock in time; each problem is listed"},
			},
			examples: []string{"LOCKGATE_NAME=nightly LOCKGATE_DB_URL=mysql://user:password@db.example/jobs LOCKGATE_DIR=/tmp/gate lockgate sidecar"},
			run:      (*program).runSidecar,
		},
		{
			name: "init", group: groupRun, reads: config.Init,
			usage: []string{"init"},
			short: "take the lock in an init container, and leave it to its TTL",
			about: "Takes the lock and ends. Nobody renews or releases it: it comes free when its TTL has passed, so that the job does not run again within this time. " +
				"Main runs under lockgate exec, or does not start when init fails.",
			exits: []exit{
				{"0", "the lock is ours, or it is busy and main is to be skipped"},
				exitUsage(), exitStore(), exitFault(),
				{"75", "the lock is busy, and lockgate was told to fail, or has waited long enough"},
				exitConfig(),
				{"128+n", "told to stop by signal n; what was taken is released"},
			},
			examples: []string{"LOCKGATE_NAME=nightly LOCKGATE_DB_URL=mysql://user:password@db.example/jobs LOCKGATE_DIR=/tmp/gate LOCKGATE_TTL=8h lockgate init"},
			run:      (*program).runInit,
		},
		{
			name: "exec", group: groupRun, startsAt: true, reads: config.Exec,
			usage: []string{"exec [--] CMD [ARG...]"},
			short: "run CMD, in main's container, under the sidecar's lock",
			about: "Asks the sidecar for the lock and runs CMD while it is held. It needs no database and no name: everything that it must follow comes from the sidecar, through the directory that they share. " +
				"What stands after CMD is CMD's.",
			exits:    exitsOfCMD("the sidecar has no database, or gave no verdict in time"),
			examples: []string{"LOCKGATE_DIR=/tmp/gate lockgate exec -- ./job.sh --all"},
			run:      (*program).runExec,
		},
		{
			name: "check", group: groupRun, reads: config.Check,
			usage:   []string{"check [--verdict]"},
			short:   "exit 0 only while the lock is held; for probes and scripts",
			about:   "Looks into the directory that sidecar and main share. It asks no database.",
			options: []option{{name: "verdict", doc: "exit 0 as soon as there is an answer, whatever it is"}},
			exits: []exit{
				{"0", "the lock is held and its deadline is ahead; with --verdict: there is an answer"},
				{"1", "it is not, or that cannot be found out"},
				exitUsage(),
			},
			examples: []string{"lockgate check && echo 'we have the lock'"},
			run:      (*program).runCheck,
		},
		{
			name: "status", group: groupLook, ordinary: true, reads: config.Status,
			usage: []string{"status [NAME...] [-o json]"},
			short: "who holds which lock, since when, how long still",
			about: "Shows the locks of those names, or all that were ever used. It changes and creates nothing.\n" +
				"The states: held; revoked (taken away by unlock, but its holder has not let go yet); kept (its holder has finished, and its minimum time keeps it taken); " +
				"free (released, or never used); expired (ended without a release: its holder died, was cut off, or goes on without the lock because it was told so).\n" +
				"In a container of a pod, or in a CMD of lockgate run, it also shows what the directory of sidecar and main says: the part \"this pod\". " +
				"Where no database is set, as in CMD's environment, it shows only that.\n" +
				"-o json prints one object: \"database\"; \"locks\", an array of name, state, holder (for people), owner (in full), run, token, since (RFC 3339), age_seconds, renewed_seconds_ago, left_seconds, " +
				"null where there is nothing to say, and of a lock that is free they tell of the last holder; and \"this_pod\", null or an object of dir, verdict, summary, lock, holder, owner, token, " +
				"acquired_at, stop_in_seconds, kill_in_seconds, reason, on_lost. \"locks\" is null when there was no database to ask.",
			options:  []option{outputOption()},
			exits:    []exit{{"0", "shown, whatever the states are"}, exitUsage(), exitStore(), exitFault(), exitConfig()},
			examples: []string{"lockgate status", "lockgate status nightly -o json | jq -r .locks[0].state"},
			run:      (*program).runStatus,
		},
		{
			name: "unlock", group: groupLook, ordinary: true, reads: config.Unlock,
			usage: []string{"unlock NAME [--token N] [--now]"},
			short: "take a lock away from its holder",
			about: "Shows the holder and asks first. The holder's next renewal is then refused: it stops its command, lets go, and only then the lock is free, at the latest when its lease ends. A lock that init took is never renewed, and ends by its TTL. " +
				"A holder that was told to go on when its lock is lost does go on. A lock that is only kept after its holder has finished is free at once. No row is ever deleted.\n" +
				"For a script, --token says which holder is meant; there is no question then, and another holder is left alone.",
			options: []option{
				{name: "token", value: "N", doc: "do not ask; take the lock away only if its token is N (status shows it)"},
				{name: "now", doc: "free the lock at once, for a holder that is known to be dead: under one that lives, two commands run until it notices"},
			},
			exits: []exit{
				{"0", "done"}, exitUsage(), exitStore(), exitFault(),
				{"75", "nothing was changed: the lock is not held, has another token, or you declined"},
				exitConfig(),
			},
			examples: []string{"lockgate unlock nightly", "lockgate unlock nightly --token 1796058717057"},
			run:      (*program).runUnlock,
		},
		{
			name: "migrate", group: groupSet, ordinary: true, reads: config.Migrate,
			usage: []string{"migrate [--print]"},
			short: "create the table of locks",
			about: "Creates the table of locks, unless it is there. A database that cannot be reached is tried again for a while. " +
				"This is for setups in which those who take locks may not, or shall not, create it. It creates the table even where creating at first use is switched off.",
			options:  []option{{name: "print", doc: "print the statement that creates the table, and touch nothing"}},
			exits:    []exit{{"0", "the table is there"}, exitUsage(), exitStore(), exitFault(), exitConfig()},
			examples: []string{"lockgate migrate --print"},
			run:      (*program).runMigrate,
		},
		{
			name: "config", group: groupSet, ordinary: true, reads: config.Show,
			usage: []string{"config [-o json]"},
			short: "the settings, and where each comes from",
			about: "Shows each setting's value and whether it comes from the environment or is a default, without secrets. It connects to nothing, and needs no lock name.\n" +
				"-o json prints an array of objects: name, value, from.",
			options:  []option{outputOption()},
			exits:    []exit{{"0", "the settings are right"}, exitUsage(), exitFault(), exitConfig()},
			examples: []string{"lockgate config"},
			run:      (*program).runConfig,
		},
		{
			name: "install", group: groupSet,
			usage: []string{"install DIR"},
			short: "copy this binary to DIR/lockgate",
			about: "Copies its own binary to DIR/lockgate, executable for everybody, and prints the path. An init container puts it so into a volume from which main runs lockgate exec. " +
				"One that is there is replaced, even while it runs.",
			exits: []exit{{"0", "done"}, exitUsage(), exitFault(),
				{"78", "DIR is missing, cannot be written, is full, or is mounted so that nothing in it can be executed"}},
			examples: []string{"lockgate install /opt/lockgate"},
			run:      (*program).runInstall,
		},
		{
			name: "completion", group: groupSet, ordinary: true,
			usage:    []string{"completion bash|zsh|fish"},
			short:    "print a script that completes lockgate's command line",
			about:    "Prints a script for that shell. bash: source <(lockgate completion bash). zsh: source <(lockgate completion zsh), after compinit. fish: lockgate completion fish | source.",
			exits:    []exit{{"0", "printed"}, exitUsage(), exitFault()},
			examples: []string{"source <(lockgate completion bash)"},
			run:      (*program).runCompletion,
		},
		{
			name: helpCommand, group: groupSelf, ordinary: true,
			usage:    []string{"help [COMMAND]"},
			short:    "what lockgate is, or how a command is used",
			about:    "Without a command: what lockgate is. With one: what it does, its options, the settings that it reads, its exit codes.",
			exits:    []exit{{"0", "printed"}, exitUsage(), exitFault()},
			examples: []string{"lockgate help run"},
			run:      (*program).runHelp,
		},
		{
			name: versionCommand, group: groupSelf, ordinary: true,
			usage:    []string{"version"},
			short:    "print the version",
			about:    "Prints the version.",
			exits:    []exit{{"0", "printed"}, exitUsage(), exitFault()},
			examples: []string{"lockgate version"},
			run: func(p *program, args []string) int {
				return p.print(args, "lockgate "+version+"\n")
			},
		},
	}
}

// findSpec returns the command of that name, or nil.
func findSpec(name string) *spec {
	all := specs()
	i := slices.IndexFunc(all, func(s spec) bool { return s.name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// nearestCommand is the command whose name is most like that.
func nearestCommand(name string) string {
	all := specs()
	return slices.MinFunc(all, func(a, b spec) int {
		return config.Distance(name, a.name) - config.Distance(name, b.name)
	}).name
}

// wantsHelp tells whether one of the arguments asks for help. What belongs to a
// CMD is not looked at.
func (s *spec) wantsHelp(args []string) bool {
	for _, arg := range args {
		if arg == "--" || s.startsAt && (arg == "" || arg[0] != '-') {
			return false
		}
		if isHelp(arg) {
			return true
		}
	}
	return false
}
