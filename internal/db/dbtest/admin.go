package dbtest

import (
	"context"
	"errors"
	"slices"

	"github.com/lockgate/lockgate/internal/db"
)

// revoke asks for a revocation as an operator would, from a client of its own.
func (b *bench) revoke(name string, token uint64, now bool) error {
	b.Helper()
	admin := b.admin()
	return b.again(func() error { return admin.Revoke(b.ctx, name, token, now) })
}

func (b *bench) wantRevoked(name string, token uint64, now bool) {
	b.Helper()
	if err := b.revoke(name, token, now); err != nil {
		b.Fatalf("Revoke(%q, %d, %t) = %v; want nil", name, token, now, err)
	}
}

func (b *bench) wantRevokeLost(why, name string, token uint64) {
	b.Helper()
	for _, now := range []bool{false, true} {
		if err := b.revoke(name, token, now); !errors.Is(err, db.ErrLost) {
			b.Errorf("Revoke %s, now %t = %v; want ErrLost", why, now, err)
		}
	}
}

func (b *bench) admin() db.Admin {
	b.Helper()
	admin, ok := b.store.(db.Admin)
	if !ok {
		b.Fatalf("%T is not a db.Admin any more", b.store)
	}
	return admin
}

// list returns the rows of those names.
func (b *bench) list(names ...string) []db.Row {
	b.Helper()
	admin := b.admin()
	var rows []db.Row
	err := b.again(func() (err error) {
		rows, err = admin.List(b.ctx, names...)
		return err
	})
	if err != nil {
		b.Fatalf("List(%q) = %v; want rows", names, err)
	}
	return rows
}

// row returns the one row of that name.
func (b *bench) row(name string) db.Row {
	b.Helper()
	rows := b.list(name)
	if len(rows) != 1 || rows[0].Name != name {
		b.Fatalf("List(%q) = %+v; want its row", name, rows)
	}
	return rows[0]
}

func adminCases() []testCase {
	return []testCase{
		{"a revoked holder can neither renew nor acquire, and keeps others out until it releases", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.wantRevoked(req.Name, lease.Token, false)
			b.wantRenewLost("that was revoked", lease)
			b.wantAcquireLost("that was revoked", req)
			held := b.held(b.ask(req.Name, "b"))
			if held.Owner != req.Owner || held.Token != lease.Token || held.Released {
				b.Errorf("holder of a revoked lock = %+v; want still %q", held, req.Owner)
			}
			b.release(lease, 0)
			next := b.acquire(b.ask(req.Name, "b"))
			if next.Token <= lease.Token {
				b.Errorf("token after a revocation = %d; want more than %d", next.Token, lease.Token)
			}
			b.renew(next)
		}},
		{"a revoked lock comes free at its expiry", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(b.brief(req))
			// The lease is short, so it may have ended before it is revoked.
			if err := b.revoke(req.Name, lease.Token, false); err != nil && !errors.Is(err, db.ErrLost) {
				b.Fatalf("Revoke() = %v; want nil, or ErrLost after its expiry", err)
			}
			b.take(b.store, b.ask(req.Name, "b"))
		}},
		{"revoke now frees at once, and the owner is refused", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.wantRevoked(req.Name, lease.Token, true)
			b.wantRenewLost("that was revoked", lease)
			b.wantAcquireLost("that was revoked", req)
			next := b.acquire(b.ask(req.Name, "b"))
			b.wantRenewLost("that was revoked and taken", lease)
			b.wantReleaseLost("a lease that was revoked and taken", lease)
			b.renew(next)
		}},
		{"a release after revoke now is accepted and keeps nobody out", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.wantRevoked(req.Name, lease.Token, true)
			b.release(lease, long)
			b.release(undo(req), long)
			b.acquire(b.ask(req.Name, "b"))
		}},
		{"a revocation can be repeated, and made to free at once", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			b.wantRevoked(req.Name, lease.Token, false)
			b.wantRevoked(req.Name, lease.Token, false)
			b.held(b.ask(req.Name, "b"))
			b.wantRevoked(req.Name, lease.Token, true)
			b.acquire(b.ask(req.Name, "b"))
		}},
		{"revoking anything but the live lease is lost and changes nothing", func(b *bench) {
			b.wantRevokeLost("of a lock never seen", b.name(), 1)

			lease := b.acquireUsed()
			for _, token := range []uint64{lease.Token + 1, lease.Token - 1, 1, 0} {
				b.wantRevokeLost("with the wrong token", lease.Name, token)
			}
			lease = b.renew(lease)
			b.release(lease, 0)
			b.wantRevokeLost("of a released lease", lease.Name, lease.Token)
			next := b.acquire(b.ask(lease.Name, "b"))
			b.wantRevokeLost("of an old lease", lease.Name, lease.Token)
			b.renew(next)

			brief := b.acquire(b.brief(b.ask(b.name(), "a")))
			b.expire()
			b.wantRevokeLost("of an expired lease", brief.Name, brief.Token)
		}},
		{"revoking what is only kept after its release frees it at once", func(b *bench) {
			for _, now := range []bool{false, true} {
				req := b.ask(b.name(), "a")
				kept := b.acquire(req)
				b.release(kept, long)
				for _, token := range []uint64{kept.Token + 1, kept.Token - 1, 0} {
					b.wantRevokeLost("of a kept lease with the wrong token", kept.Name, token)
				}
				b.held(b.ask(kept.Name, "b"))
				b.wantRevoked(kept.Name, kept.Token, now)
				if row := b.row(kept.Name); !row.Released || !row.Revoked || row.Remaining > 0 || row.Token != kept.Token {
					b.Errorf("List() after revoking a kept lease, now %t = %+v; want it released, revoked and ended", now, row)
				}
				b.wantAcquireLost("that released", req)
				b.release(kept, long) // a repetition
				next := b.acquire(b.ask(kept.Name, "b"))
				if next.Token <= kept.Token {
					b.Errorf("token after a kept lease was revoked = %d; want more than %d", next.Token, kept.Token)
				}
				b.wantRevokeLost("of the lease before", kept.Name, kept.Token)
				b.renew(next)
			}
		}},
		{"list shows a live lease", func(b *bench) {
			req := b.ask(b.name(), "a")
			lease := b.acquire(req)
			first := b.expire()
			b.renew(lease)
			second := b.expire()
			row := b.row(req.Name)
			if row.Owner != req.Owner || row.Run != req.Run || row.Token != lease.Token || row.Released || row.Revoked {
				b.Errorf("List() = %+v; want the lease %+v", row, lease)
			}
			if row.Renewed < second/2 || row.Age < row.Renewed+first/2 || row.Age > patience {
				b.Errorf("List() has age %s, renewed %s ago; want at least %s and %s", row.Age, row.Renewed, first+second, second)
			}
			if row.Remaining > long || row.Remaining < long-patience {
				b.Errorf("List() has %s remaining; want about %s", row.Remaining, long)
			}
		}},
		{"list shows what became of a lease", func(b *bench) {
			released := b.acquire(b.ask(b.name(), "a"))
			b.release(released, 0)
			if row := b.row(released.Name); !row.Released || row.Remaining > 0 || row.Token != released.Token {
				b.Errorf("List() after a release = %+v; want it released and ended", row)
			}
			kept := b.acquire(b.ask(b.name(), "a"))
			b.release(kept, long)
			if row := b.row(kept.Name); !row.Released || row.Remaining < long-patience {
				b.Errorf("List() after a release that keeps = %+v; want it released, %s to go", row, long)
			}
			revoked := b.acquire(b.ask(b.name(), "a"))
			b.wantRevoked(revoked.Name, revoked.Token, false)
			if row := b.row(revoked.Name); !row.Revoked || row.Released || row.Remaining < long-patience {
				b.Errorf("List() after a revocation = %+v; want it revoked, %s to go", row, long)
			}
			b.wantRevoked(revoked.Name, revoked.Token, true)
			if row := b.row(revoked.Name); !row.Revoked || row.Remaining > 0 {
				b.Errorf("List() after revoke now = %+v; want it revoked and ended", row)
			}
			expired := b.acquire(b.brief(b.ask(b.name(), "a")))
			b.expire()
			if row := b.row(expired.Name); row.Released || row.Revoked || row.Remaining > 0 || row.Owner != expired.Owner {
				b.Errorf("List() after an expiry = %+v; want it ended, still by %q", row, expired.Owner)
			}
		}},
		{"a new holder has nothing of the last one's end", func(b *bench) {
			name := b.name()
			old := b.acquire(b.ask(name, "a"))
			b.wantRevoked(name, old.Token, true)
			b.release(old, 0)
			next := b.acquire(b.ask(name, "b"))
			if row := b.row(name); row.Released || row.Revoked || row.Owner != next.Owner || row.Token != next.Token {
				b.Errorf("List() after a takeover = %+v; want only %+v", row, next)
			}
		}},
		{"list is in the order of names and leaves out what is missing", func(b *bench) {
			names := []string{b.name(), b.name(), b.name()}
			slices.Sort(names)
			for _, i := range []int{2, 0, 1} {
				b.acquire(b.ask(names[i], "a"))
			}
			if got := rowNames(b.list(names[2], b.name(), names[0])); !slices.Equal(got, []string{names[0], names[2]}) {
				b.Errorf("List of two names and a missing one = %q; want %q", got, []string{names[0], names[2]})
			}
			if got := b.list(b.name()); len(got) != 0 {
				b.Errorf("List of a missing name = %+v; want none", got)
			}
			all := rowNames(b.list())
			if !slices.IsSorted(all) {
				b.Errorf("List() = %q; want it in the order of names", all)
			}
			for _, name := range names {
				if !slices.Contains(all, name) {
					b.Errorf("List() = %q; want also %q", all, name)
				}
			}
		}},
		{"list changes nothing", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			before := b.row(lease.Name)
			if after := b.row(lease.Name); after.Remaining > before.Remaining || after.Age < before.Age || after.Token != before.Token {
				b.Errorf("List() = %+v, then %+v; want no change but of time", before, after)
			}
			b.renew(lease)
		}},
		{"a context that has ended already is an error without a decision", func(b *bench) {
			lease := b.acquire(b.ask(b.name(), "a"))
			ctx, cancel := context.WithCancel(b.ctx)
			cancel()
			if err := b.admin().Revoke(ctx, lease.Name, lease.Token, true); err == nil || decisions(err) != 0 {
				b.Errorf("Revoke with a cancelled context = %v; want an error that decides nothing", err)
			}
			if _, err := b.admin().List(ctx); err == nil || decisions(err) != 0 {
				b.Errorf("List with a cancelled context = %v; want an error that decides nothing", err)
			}
		}},
	}
}

func rowNames(rows []db.Row) []string {
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row.Name
	}
	return names
}
