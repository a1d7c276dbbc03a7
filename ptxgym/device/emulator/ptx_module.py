"""Module level of PTX: versions, files, variables, and the heads of functions."""

from __future__ import annotations

from dataclasses import replace

from ptxgym.device.emulator.ptx import Function, Variable
from ptxgym.device.emulator.ptx_cursor import Cursor

_LINKAGE = frozenset({".visible", ".weak", ".extern", ".common"})
_SPACES = frozenset({".global", ".const", ".shared"})
_NUMERIC_DIRECTIVES = frozenset(
    {"maxntid", "reqntid", "minnctapersm", "maxnctapersm", "maxnreg", "reqnctapercluster", "maxclusterrank"}
)
_PLAIN_DIRECTIVES = frozenset({"explicitcluster", "blocksareclusters", "noreturn"})


class ModuleParser(Cursor):
    """Fills a `Module` from its tokens."""

    def parse(self) -> None:
        """Parse every module-level statement.

        Raises:
            PtxSyntaxError: where the text is not PTX.
        """
        end = len(self.tokens) - 1
        while self.at < end:
            self._statement()
        if not self.module.version:
            self.fail("no `.version` directive: this is not a PTX module")
        self._check_references()

    def _check_references(self) -> None:
        """Mark variables whose initialisers hold addresses of what is neither a variable in memory nor a function."""
        variables = self.module.variables
        for name, variable in variables.items():
            for reference in variable.references:
                function = self.module.functions.get(reference.symbol)
                if function is not None and not function.is_entry and function.start is not None:
                    continue
                target = variables.get(reference.symbol)
                if target is None or target.space not in ("global", "const") or target.extern:
                    reason = f"the address of `{reference.symbol}` in its initialiser"
                    variables[name] = replace(variable, unsupported=reason)

    def _statement(self) -> None:
        token = self.take()
        linkage = set()
        while token in _LINKAGE:
            linkage.add(token)
            token = self.take()
        module = self.module
        if token in _SPACES:
            for variable in self.variables(token[1:], extern=".extern" in linkage):
                module.variables[variable.name] = variable
            self.expect(";")
        elif token in (".entry", ".func"):
            function = self._function(token == ".entry")
            known = module.functions.get(function.name)
            if known is None or known.start is None:
                module.functions[function.name] = function
        elif token == ".file":
            number = self.integer()
            module.files[number] = self.string()
            while self.accept(","):
                self.integer()
        elif token == ".version":
            module.version = self.take()
        elif token == ".target":
            module.target = self.word()
            while self.accept(","):
                self.word()
        elif token == ".address_size":
            module.address_size = self.integer()
            if module.address_size != 64:
                self.fail(f"address size {module.address_size}; only 64-bit modules are read")
        elif token == ".section":
            self.take()
            self.skip_braces()
        elif token == ".pragma":
            self.string()
            self.expect(";")
        elif token == ".alias":
            while self.take() != ";":
                pass
        elif token != ";" and not token.startswith(".loc"):
            self.fail(f"`{token[:60]}` does not begin a module-level statement", self.at - 1)

    def _function(self, is_entry: bool) -> Function:
        returns = self._parameters() if not is_entry and self.peek() == "(" else ()
        name = self.word()
        params = self._parameters() if self.peek() == "(" else ()
        directives: dict[str, tuple[int, ...]] = {}
        while self.peek()[0] == "." and not self.peek().startswith(".loc"):
            directive = self.take()[1:]
            if directive in _NUMERIC_DIRECTIVES:
                values = [self.integer()]
                while self.accept(","):
                    values.append(self.integer())
                directives[directive] = tuple(values)
            elif directive in _PLAIN_DIRECTIVES:
                directives[directive] = ()
            elif directive == "pragma":
                self.string()
                self.accept(";")
            else:
                self.fail(f"`.{directive}` after `{name}` is not understood", self.at - 1)
        while self.peek().startswith(".loc"):
            self.at += 1
        start = None if self.accept(";") else self.skip_braces()
        return Function(name, is_entry, params, returns, directives, start, self.module)

    def _parameters(self) -> tuple[Variable, ...]:
        self.expect("(")
        found: list[Variable] = []
        while not self.accept(")"):
            if self.peek() not in (".param", ".reg"):
                self.fail(f"expected `.param`, found `{self.peek()[:60]}`")
            self.at += 1
            found += self.variables("param")
            if not self.accept(",") and self.peek() != ")":
                self.fail(f"expected `,` or `)` after a parameter, found `{self.peek()[:60]}`")
        return tuple(found)
