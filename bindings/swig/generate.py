# SPDX-License-Identifier: Apache-2.0
"""Writes the values, options, enums and forwarding methods of a language from the C headers.

Usage: generate.py --language java|csharp|python --include FOLDER --out FOLDER [-- SWIG ARGUMENT...]

The documentation is that of the headers' comments, and the text around it that of LANGUAGE.template. After --, SWIG
writes the calls. For Java and C# FOLDER is emptied first, so that no class of an older interface is left in it, and it
gets the classes in values/. For Python it gets values.py, and values.i for SWIG.

The rules, which a new field, flag, enumerator, struct or function follows without work:
 - `typedef uint32_t gmm_x;` before an enum makes it the enum X. The enumerators lose their common prefix.
 - A struct *_info (and gmm_lease_ask) is an answer: an immutable value, which reads the bytes of the C struct.
 - A struct *_desc is a class of options, which encodes itself into the bytes of the C struct (struct.h).
 - A field whose comment begins with `GMM_X_*` holds the flags of that prefix: each is a property that is true or false.
   The number itself is shown if the field has another name than `flags`.
 - A field whose comment begins with "1 if" or "1:" is true or false. Reserved fields, fields that must be 0, functions
   and handles are left out.
 - Text and lists of options (a pointer, with `<singular>_count` beside it) lie behind the struct.
 - A field that has the name of a flag of its struct sets that flag (gmm_scope_desc).
 - A function that takes a handle and no callback, and makes no object, is a method that forwards to it. The handle is
   the class. A function of an address of a block is a method of the context and of the buffer, there also for a part.
 - java/members/<Class>.java has the members of a class that are written by hand. C# has partial classes. The forwarding
   methods of Java's class X are in XCalls, which X extends.
"""
import argparse
import collections
import html
import itertools
import os
import pathlib
import re
import shutil
import string
import subprocess
import sys
import textwrap

HERE = pathlib.Path(__file__).parent


def read_words(lines):
    """Lines `name text | kind kind: text`: the texts by name, or by name and kind."""
    return {f'{word} {kind}'.strip(): text for word, entries in re.findall(r'^(\w+) (.*)', lines, re.M)
            for kinds, text in re.findall(r'(?:([\w. ]+): )?(.+?)(?: \| |$)', entries)
            for kind in kinds.split() or ['']}


def named(word, c_name, otherwise='', names=read_words((HERE / 'names.template').read_text())):
    """The entry of names.template for a name, which has no gmm_ there."""
    return names.get(f'{word} {c_name[len("gmm_"):]}', otherwise)


# Flags that a program passes around are an enum of their own.
EVENTS = 'GMM_WATCH_'
# Made of functions, so C and C++ alone have it; and the elements of a list that is a map.
LEFT_OUT = ('gmm_semaphore_', 'gmm_lease_amount')
# The classes of handles that have forwarding methods. A tag is a number of its context, a buffer a block of it.
OWNERS = {f'gmm_{name}': name for name in ('context', 'heap', 'event', 'ticket', 'lease')}
SIZES = {'uint32_t': 4, 'int32_t': 4, 'char': 1, 'uint8_t': 1}  # all others have 8 bytes


# --- The model: the headers and their comments ---------------------------------------------------------------

# name: without what all enumerators begin with.
Enumerator = collections.namedtuple('Enumerator', 'c_name name value doc')
# handle: the type of the first parameter; parameters: (type of C without const, name) of the others.
Function = collections.namedtuple('Function', 'c_name handle parameters doc')


class Enum:
    """c_name: that of its type, or '' for flags; prefix: what all enumerators begin with."""

    def __init__(self, c_name, items, doc):
        self.c_name, self.doc = c_name, doc
        common = os.path.commonprefix([item.c_name for item in items])
        self.prefix = common[:common.rfind('_') + 1] if len(items) > 1 else '_'.join(common.split('_')[:2]) + '_'
        self.items = [item._replace(name=re.sub(f'^{self.prefix}(ERROR_)?', '', item.c_name)) for item in items]


class Field:
    """kind: what a language makes of it (Model.kind_of). flags: those that a program sets by themselves, as fields with
    their enum and item. applies: the flag that says that this field applies. code: its number in Python's struct."""

    def __init__(self, c_type, pointer, c_name, count, doc, kind=None, enum=None, item=None):
        self.c_name, self.c_type, self.pointer, self.count, self.doc = c_name, c_type, pointer, int(count or 0), doc
        self.kind, self.enum, self.item, self.flags, self.applies = kind, enum, item, [], None


class Struct:
    def __init__(self, c_name, fields, doc):
        self.c_name, self.fields, self.doc, self.size = c_name, fields, doc, 0
        self.is_options = c_name.endswith('_desc')

    def count_of(self, field):
        """The field that counts the elements of a list, or None."""
        return next((each for each in self.fields if each.c_name == field.c_name[:-1] + '_count'), None)


# Declarations. A comment is a number: «number» before what it describes, ‹number› behind it.
BEFORE, BEHIND = r'(?:«(\d+)»\s*)?', r'(?:\s*‹(\d+)›)?'
ENUM = re.compile(BEFORE + r'(?:typedef \w+ (\w+);\s*)?enum \{(.*?)\}', re.S)
ENUMERATOR = re.compile(BEFORE + r'(GMM_\w+)(?: = )?([^,«‹]*),?' + BEHIND)
STRUCT = re.compile(BEFORE + r'typedef struct (\w+) \{(.*?)\}', re.S)
FIELD = re.compile(BEFORE + r'(?:const )?(\w+) ([*(]*)(\w+)(?:\[(\d+)\]|\)\([^;]*)?;' + BEHIND)
FUNCTION = re.compile(BEFORE + r'(?:GMM_\w+ )*gmm_result\s+(gmm_\w+)\((gmm_\w+) \*\w+,?\s*([^;]*)\)[^);]*;')


def number(text):
    """The value of a constant expression of C; None when it has none."""
    text = text.replace('UINT64_MAX', '0xffffffffffffffff').replace('UINT32_MAX', '0xffffffff')
    text = re.sub(r'(?<=\d)u\b|\(gmm_\w+\)', '', text.strip())
    return eval(text, {}) if re.fullmatch(r'[-\d\sa-fx<()]+', text) else None


class Model:
    def __init__(self, include):
        self.enums, self.structs, self.typedefs, self.constants, self.functions = [], {}, {}, {}, []
        self.handles = []
        for header in re.findall(r'#include <(gmm/\w+\.h)>', (include / 'gmm' / 'gmm.h').read_text()):
            self.read((include / header).read_text())
        self.types = {enum.c_name: enum for enum in self.enums
                      if enum.c_name and not enum.c_name.startswith(LEFT_OUT)}
        for struct in self.structs.values():
            self.classify(struct)
        self.values = [struct for struct in self.structs.values() if struct.fields[0].c_name == 'struct_size'
                       and not struct.c_name.startswith(LEFT_OUT)]

    def read(self, text):
        docs = {'': ''}  # by number

        def keep(match):
            if not match[1]:
                return ''
            mark = str(len(docs))
            docs[mark] = re.sub(r'^\s*\* ?', '', match[2].strip(), flags=re.M).strip()
            return f'‹{mark}›' if match[1] == '*<' else f'«{mark}»'

        text = re.sub(r'/\*(\*<?)?(.*?)\*/', keep, text, flags=re.S)
        for before, c_name, body in ENUM.findall(text):
            items = [Enumerator(name, '', number(value), docs[behind or above])
                     for above, name, value, behind in ENUMERATOR.findall(body)]
            self.enums.append(Enum(c_name, items, docs[before]))
        for before, c_name, body in STRUCT.findall(text):
            fields = [Field(*declared, docs[behind or above]) for above, *declared, behind in FIELD.findall(body)]
            self.structs[c_name] = Struct(c_name, fields, docs[before])
        for before, c_name, handle, declared in FUNCTION.findall(text):
            parameters = [re.match(r'(?:const )?(.*?) ?(\w+)\W*$', each).groups()
                          for each in re.split(r',\s+', declared) if each]
            self.functions.append(Function(c_name, handle, parameters, docs[before]))
        defined = re.findall(r'^#define (GMM_\w+) ([^\n‹]+)', text, re.M)
        self.constants.update((name, number(value)) for name, value in defined if number(value) is not None)
        self.typedefs.update((new, old) for old, new in re.findall(r'typedef (\w+) (\w+);', text))
        self.handles += re.findall(r'typedef struct (gmm_\w+) \1;', text)

    def classify(self, struct):
        """Gives each field its place (rule 4 of the interface: no hidden padding, multiples of 8), kind and flags."""
        names = {field.c_name: field for field in struct.fields}
        for field in struct.fields:
            held = self.structs.get(field.c_type)
            number_type = self.typedefs.get(field.c_type, field.c_type)
            field.at, field.size = struct.size, (8 if field.pointer else held.size if held
                                                 else SIZES.get(number_type, 8))
            field.code = 'Q' if field.size == 8 else 'i' if number_type == 'int32_t' else 'I'
            struct.size += field.size * max(field.count, 1)
            field.kind = self.kind_of(struct, field)
            field.is_argument = bool(named('argument', f'{struct.c_name}.{field.c_name}'))
            all_flags, field.flags = field.flags, []
            for enum, item in all_flags:
                name = re.sub('^(PAUSE|RESUME)_', '', item.name)
                name = f'{name}_ipc' if item.c_name.startswith('GMM_IPC_ROUTE_') else name
                if struct.is_options and name.lower() in names:
                    names[name.lower()].applies = item
                else:
                    field.flags.append(Field('uint32_t', '', name, 0, item.doc, 'flag', enum, item))

    def kind_of(self, struct, field):
        name, doc, c_type = field.c_name, field.doc, field.c_type
        flags = re.match(r'(GMM_\w+_)\*', doc)
        if name in ('struct_size', 'reserved') or doc.rstrip('.') in ('0', 'must be 0') or '(' in field.pointer:
            return 'skip'
        if flags and flags[1] == EVENTS:
            return 'events' if struct.is_options else 'event'
        if flags:
            named = re.findall(r'GMM_[A-Z_]+[A-Z]\b', doc)
            field.flags = [(enum, item) for enum in self.enums if not enum.c_name for item in enum.items
                           if item.c_name.startswith(flags[1]) or item.c_name in named]
            return 'flags'
        if field.pointer:
            return ('text' if c_type == 'char' else 'skip' if c_type in self.handles else 'address'
                    if not struct.count_of(field) else 'ranges' if c_type == 'gmm_range'
                    else 'map' if c_type in self.structs else 'list')
        if c_type.endswith('_callback'):
            return 'callback'
        if c_type in self.structs or any(each.pointer and struct.count_of(each) is field for each in struct.fields):
            return 'skip'
        if field.count:
            return 'name' if c_type == 'char' else 'bytes'
        if c_type in ('gmm_stream', 'gmm_tag') and struct.is_options:
            return c_type[len('gmm_'):]
        if c_type.endswith('_mask'):
            field.c_type = c_type[:-len('_mask')]
            return 'mask'
        if re.match(r'1( if|:)', doc) and c_type == 'uint32_t':
            return 'bool'
        if field.size == 8:
            return 'address' if c_type == 'gmm_stream' else 'u64' if self.is_unbounded(field) else 'size'
        kind = 'enum' if c_type in self.types else 'i32' if field.code == 'i' else 'u32'
        return f'optional_{kind}' if field.applies else kind

    def argument_kind(self, c_type, name):
        """The kind of a parameter for a method that forwards; None: the function is more than that."""
        kinds = {'char *': 'text', 'void *': 'address', 'void * out': None, 'uint64_t * bytes': 'out_u64',
                 'gmm_tag * out': 'out_tag', 'gmm_ticket ** out': 'out_ticket', 'gmm_ipc_handle * out': 'out_handle',
                 'gmm_stream': 'stream', 'gmm_tag': 'tag', 'uint32_t': 'u32', 'int32_t': 'i32', 'gmm_device': 'i32',
                 'uint64_t': 'u64', 'uint64_t timeout_ms': None, 'gmm_pause_desc *': 'pause',
                 **dict.fromkeys(self.types, 'enum')}
        struct = self.structs.get(c_type.rstrip(' *'))
        if struct in self.values and not any(each.is_argument or each.kind == 'callback' for each in struct.fields):
            return 'options' if struct.is_options else 'answer'
        return kinds.get(f'{c_type} {name}', kinds.get(c_type))

    def forwarding(self):
        """By class: its methods, each a function with the parameters that are left of it, and its name."""
        found = {owner: [] for owner in [*OWNERS.values(), 'tag', 'buffer']}
        for function in self.functions:
            arguments = [(self.argument_kind(*parameter), *parameter) for parameter in function.parameters]
            kinds = [kind for kind, _, _ in arguments]
            if function.handle not in OWNERS or named('by_hand', function.c_name) or None in kinds:
                continue
            owner = OWNERS[function.handle]
            if arguments[:1] == [('tag', 'gmm_tag', 'tag')] and function.c_name != 'gmm_tag_set_default':
                owner = 'tag'
            name = named('named', function.c_name, re.sub(f'^gmm_({owner}_)?', '', function.c_name))
            name = 'info' if function.c_name == f'gmm_{owner}_query' else name
            found[owner].append((name, function, arguments[owner == 'tag':]))
            if 'pause' in kinds:
                found['tag'].append((name, function, arguments))
            if kinds.count('address') == 1 and kinds[0] == 'address' and function.c_name != 'gmm_free':
                found['buffer'].append((named('in_buffer', function.c_name, name), function, arguments[1:]))
        return found

    def methods(self):
        """By function: the class and the method that call it."""
        made = {function.c_name: (owner, name) for owner, functions in reversed(self.forwarding().items())
                for name, function, _ in functions}
        for c_name in ['gmm_context_create', *(each.c_name for each in self.functions)]:
            owner, verb = re.match('gmm_(?:(heap|event|stream|tag|ticket|lease|watcher)_)?(?:try_)?(.*)',
                                   c_name).groups('context')
            own = named('named', c_name, 'close' if verb == 'destroy' else verb)
            made.setdefault(c_name, tuple(own.split('.')) if '.' in own else (owner, own))
        return {c_name: made[c_name] for c_name in sorted(made) if not named('unseen', c_name)}

    def is_unbounded(self, described):
        """Whether a number may stand for all bits, so that it may be negative in a language without a sign."""
        special = [name for name, value in self.constants.items() if value == 0xffffffffffffffff]
        return any(name in described.doc for name in special) or described.doc.startswith('bit ')


# --- The languages --------------------------------------------------------------------------------------------

class Writer:
    """All that languages share. LANGUAGE.template has the texts of one: lines `name text | kind kind: text`, with
    the text for all kinds and that for some, and then longer texts, each behind a line `=== name kind...`."""

    def __init__(self, model, out):
        self.model, self.out, self.texts = model, out, {}
        words, *longer = re.split('^=== ', (HERE / f'{self.language}.template').read_text(), flags=re.M)
        for names, text in (each.split('\n', 1) for each in longer):
            word, *kinds = names.split()
            self.texts.update((f'{word} {kind}'.strip(), text) for kind in kinds or [''])
        self.texts.update(read_words(words.split('\n', 1)[1]))

    def fill(self, name, kind='', /, **values):
        """The text of a template for a kind, or else that for all."""
        return string.Template(self.texts.get(f'{name} {kind}', self.texts.get(name, ''))).substitute(values)

    def pascal(self, name):
        words = name.lower().strip('_').split('_')
        units = [self.fill('unit', word) or word if i else word for i, word in enumerate(words)]
        return ''.join(word.capitalize() for word in units)

    def camel(self, name):
        made = self.pascal(name)
        return made[0].lower() + made[1:]

    def type_name(self, c_name):
        return self.pascal(named('type', c_name) or re.sub('_desc$', '_options', c_name[len('gmm_'):]))

    def methods(self, between):
        """The lines of a table: the method by which a message names a function."""
        return between.join(
            self.fill('called_by', c_name=c_name, method=self.fill('called', c_name[len('gmm_'):]) or '.'.join(
                [self.fill('owner', owner, name=self.pascal(owner)), self.case(self.fill('renamed', name) or name)])
            ).rstrip() for c_name, (owner, name) in self.model.methods().items())

    def paragraphs(self, doc):
        return [' '.join(part.split()) for part in re.split(r'\n\s*\n', doc) if part.strip()]

    def text(self, doc, otherwise):
        """The paragraphs of a comment: the first word has a capital letter, the last a full stop."""
        words = ' '.join(re.sub(r'(?<!^)([A-Z])(?=[a-z])', r' \1', otherwise).lower().replace('_', ' ').split())
        doc = re.sub(r'(?<!\w)::(?=\w)', '', doc or f'The {words}.').replace('::', '.').strip()
        doc = f'The {words} in bytes.' if doc == 'bytes' else doc
        doc = doc[0].upper() + doc[1:] if not re.match(r'(gmm_|GMM_|cu[A-Z]|cuda)', doc) else doc
        return self.paragraphs(doc if doc[-1] in '.:!?|' else doc + '.')

    def sections(self, doc):
        """The text of a function's comment, and its parameters' descriptions."""
        doc = re.sub(r'\bNULL\b', 'null', re.sub(r'^(@param|[A-Z]\w+:)', r'\n\n\1', doc, flags=re.M))
        parts = [part for part in self.paragraphs(doc) if not part.startswith('Since:')]
        tags = [re.match(r'@param(?:\[\w+\])? (\w+) (.*)', part) for part in parts]
        return ('\n\n'.join(part for part in parts if not part.startswith('@')),
                {tag[1]: tag[2].strip().replace('; may be null', '') for tag in tags if tag})

    def comment(self, parts, indent, begin, each, end):
        """A comment of the language, whose parts begin lines."""
        lines = [line for part in parts for line in textwrap.wrap(part, 112 - len(indent)) or ['']]
        return textwrap.indent(begin + f'\n{each}'.join(lines) + end, indent) + '\n'


# doc: the text of a parameter of a method, which begins with "null:" where the parameter may be left out.
Parameter = collections.namedtuple('Parameter', 'type own doc')


class Compiled(Writer):
    """Java and C#: a class a struct, an enum, and methods that forward."""

    def write(self):
        shutil.rmtree(self.out, ignore_errors=True)
        (self.out / 'values').mkdir(parents=True)
        for enum in [*self.model.types.values(), *(each for each in self.model.enums if each.prefix == EVENTS)]:
            self.save(*self.enum(enum))
        for struct in self.model.values:
            self.save(self.type_name(struct.c_name), self.struct(struct))
        for owner, functions in self.model.forwarding().items():
            methods = ''.join(self.method(each, *function) for function in functions for each in (owner, 'part')
                              if each == owner or owner == 'buffer' and ('u64', 'uint64_t', 'size') in function[2])
            words = {word: self.fill(word, owner) for word in ('base', 'parameters', 'passed')}
            name = self.pascal(owner)
            self.save(f'{name}Calls', self.fill('calls', owner=owner, name=name, methods=methods, **words))
        self.save('Methods', self.fill('methods', items=self.methods(',\n')))

    def save(self, name, body):
        members = HERE.parent / self.language / 'members' / f'{name}{self.suffix}'
        body = body.rstrip()
        if members.exists():
            body = body[:-1] + members.read_text().split('*/', 1)[1] + '}'
        (self.out / 'values' / f'{name}{self.suffix}').write_text(self.fill('file', body=body))

    def type_name(self, c_name):
        return self.prefix + super().type_name(c_name)

    def type_of(self, kind, c_type):
        return self.fill('type', kind) or self.type_name(c_type)

    def name_of(self, struct, field):
        return self.case(named('field', f'{struct.c_name}.{field.c_name}', field.c_name))

    def enum(self, enum):
        name, items = self.type_name(enum.c_name) if enum.c_name else self.fill('type', 'event'), [*enum.items]
        if enum.c_name == 'gmm_result':
            items.append(Enumerator('', 'UNKNOWN', -2147483648, 'A code of a newer library.'))
        return name, self.fill(
            'enum', '' if enum.c_name else 'flags', name=name, doc=self.doc(enum.doc, name, indent=''),
            unknown='UNKNOWN' if enum.c_name == 'gmm_result' else 'null',
            items=',\n'.join(self.fill('enumerator', doc=self.doc(each.doc, each.name), upper=each.name,
                                       pascal=self.pascal(each.name), value=each.value).rstrip() for each in items))

    def struct(self, struct):
        """A class of options or an answer."""
        name, members, shown, call = self.type_name(struct.c_name), '', [], '' if struct.is_options else self.call
        for field in [each for each in struct.fields if each.kind != 'skip' and not each.is_argument]:
            value = '' if struct.is_options else self.fill(
                'read', field.kind, at=field.at, count=field.count, type=self.type_of(field.kind, field.c_type))
            has_number = field.kind != 'flags' or value and field.c_name != 'flags'
            for each in [field, *field.flags] if has_number else field.flags:
                own = self.name_of(struct, each)
                bit = f'({value} & {each.item.value}) != 0' if value and each.item else value
                members += '\n' + self.property(name, each, own, bit)
                shown.append(f'"{own}", {self.fill("show", each.kind, own=own + call)}')
            if field.kind == 'mask':
                members += '\n' + self.fill('has', doc=self.doc(f'Whether this one is among the {own}.', ''),
                                            type=self.type_name(field.c_type), value=value)
        users, puts = self.encoded(struct) if struct.is_options else ('', [])
        ends = '\n' + self.fill('options' if struct.is_options else 'answer', name=name, size=struct.size, users=users,
                         puts='\n        '.join(puts))
        return self.fill(
            'class', name=name, members=(members + ends if struct.is_options else ends + members).lstrip('\n'),
            doc=self.doc(f'{struct.doc}\n\n{self.fill("fluent") if struct.is_options else ""}', name, indent=''),
            access=self.internal if named('internal', struct.c_name) else 'public ', values=', '.join(shown))

    def property(self, name, field, own, value):
        """A value of an answer, or a field of options. An element of a map is a number and bytes."""
        words = {'name': name, 'own': own, 'type': self.type_of(field.kind, field.c_type), 'value': value,
                 'single': self.case(field.c_name[:-1]), 'camel': own[0].lower() + own[1:]}
        if field.kind == 'enum':
            words['zero'] = next((item.name for item in self.model.types[field.c_type].items if item.value == 0), None)
        elif field.kind == 'map':
            element = self.model.structs[field.c_type].fields
            words['number'], words['bytes'] = [self.camel(each.c_name) for each in element if each.kind != 'skip']
        words.update((word, self.fill(word, field.kind, **words)) for word in ('declared', 'taken', 'set'))
        return self.fill('getter' if value else 'property', field.kind, doc=self.doc(field.doc, field.c_name), **words)

    def encoded(self, struct):
        """The parameters of a class of options' encode(), and the calls that put its fields where C has them."""
        users, puts = [], []
        for field in [each for each in struct.fields if each.kind != 'skip']:
            own, user = self.name_of(struct, field), f'{self.camel(field.c_name)}User'
            value = self.fill('put', field.kind, own=own, type=self.type_of(field.kind, field.c_type),
                              pascal=self.pascal(field.c_name))
            if field.kind == 'callback':
                users.append(f'{self.fill("type", "address")} {user}')
                value = f'"{field.c_type}", {user}'
            elif field.kind in ('list', 'map', 'ranges'):
                users += [f'{self.fill("type", "tag")}[] {field.c_name}'] if field.is_argument else []
                value = f'{struct.count_of(field).at}, {field.c_name if field.is_argument else own}'
            elif field.kind == 'flags':
                tests = [(each.item, self.case(each.c_name)) for each in field.flags]
                tests += [(each.applies, f'{self.name_of(struct, each)} != null')
                          for each in struct.fields if each.applies]
                value = ' | '.join(f'({test} ? {item.value} : 0)' for item, test in tests)
            puts.append(f'to.{self.case("put")}({field.at}, {value});')
        return ', '.join(users), puts

    def member(self, doc, kind, name, parameters, steps):
        declared = ', '.join(f'{each.type} {each.own}' for each in parameters)
        return '\n' + self.fill('method', doc=doc, head=f'{kind} {name}({declared})',
                                steps='\n        '.join(f'{step};' for step in steps if step))

    def shorter(self, kind, name, parameters, left_out, instead):
        """A method without one of the parameters, which gives a value instead to the method that has it."""
        link = self.fill('link', name=name, types=', '.join(each.type for each in parameters))
        given = ', '.join(instead if each is left_out else each.own for each in parameters)
        return self.member(self.doc(f'Does the same as {link}, with no {left_out.own}.', ''), kind, name,
                           [each for each in parameters if each is not left_out],
                           [f'{"return " if kind != "void" else ""}{name}({given})'])

    def method(self, owner, name, function, arguments):
        """A method of a class that forwards; owner 'part': of a buffer, for a part of it."""
        name = self.case(self.fill('renamed', name) or name)
        text, described = self.sections(function.doc)
        passed, stream, returned, made, answer = [self.fill('self', owner)], '', 'void', '', ''
        parameters = [Parameter(self.fill('type', 'u64'), own, '') for own in ('offset', 'length') if owner == 'part']
        steps = [self.fill('check', 'part')] if owner == 'part' else []
        for kind, c_type, c_name in arguments:
            own, c_type = 'options' if c_name == 'desc' else self.camel(c_name), c_type.rstrip(' *')
            own_type, size = self.type_of(kind, c_type), self.fill('size', owner) if c_name == 'size' else ''
            passed.append(size or self.fill('pass', kind, own=own))
            if kind.startswith(('out', 'answer')):
                returned = own_type
                made, answer = [self.fill(word, kind, type=own_type) for word in ('made', 'result')]
            elif not size:
                parameters.append(Parameter(own_type, own, '' if kind == 'pause' else described.get(c_name, '')))
                if kind == 'u64':
                    is_unbounded = self.model.is_unbounded(function)
                    steps.append(self.fill('check', 'unbounded' if is_unbounded else '', own=own))
                fields = self.model.structs[c_type].fields if kind == 'options' else []
                if kind == 'stream' or any(field.kind == 'stream' for field in fields):
                    stream = self.fill('stream', kind, own=own)
        is_pause = bool(arguments) and arguments[0][0] == 'pause'
        if is_pause:  # of the tag, or of tags that follow the options
            parameters += [Parameter(self.fill('tags'), 'tags', 'none: every tag')] if owner == 'context' else []
            by = 'tag' if owner == 'tag' else arguments[-1][0]
            steps = ['return ' + self.fill('pause', by, name=name, c_name=function.c_name)]
        else:
            call = f'Native.{function.c_name}({", ".join(passed)})'
            call = self.fill('on', stream=stream, call=call) if stream else call
            steps += [made, self.fill('run', owner, call=call), answer and f'return {answer}']
        doc = [('param', each.own, each.doc) for each in parameters]
        doc += [('returns', None, described['bytes'])] if returned != 'void' and described.get('bytes') else []
        optional = [*itertools.takewhile(lambda each: each.doc.startswith('null:'), parameters[::-1])]
        default = self.fill('default')
        taken = [each._replace(own=f'{each.own} {default}') if default and each in optional else each
                 for each in parameters]
        made = self.member(self.doc(text, name, doc), returned, name, taken, steps)
        if is_pause:
            made += self.shorter(returned, name, parameters, parameters[0], f'new {parameters[0].type}()')
        for i, each in enumerate(optional if not default else []):
            made += self.shorter(returned, name, parameters[:len(parameters) - i], each, 'null')
        return made


class Java(Compiled):
    language, suffix, prefix, internal, call = 'java', '.java', '', '', '()'
    case = Writer.camel

    def doc(self, doc, otherwise, tags=(), indent='    '):
        """A javadoc comment."""
        made = [re.sub(r'`([^`]*)`', r'{@code \1}', part.replace('&', '&amp;').replace('<', '&lt;')) for part in [
            *self.text(doc, otherwise),
            *(('@return ' if kind == 'returns' else f'@param {name} ') + ' '.join(self.text(text, kind))
              for kind, name, text in tags if text)]]
        made = [('<p>' if i and part[0] != '@' else '') + part for i, part in enumerate(made)]
        return self.comment(made, indent, '/** ', ' * ', ' */')


class CSharp(Compiled):
    language, suffix, prefix, internal, call = 'csharp', '.cs', 'Gmm', 'internal ', ''
    case = Writer.pascal

    def doc(self, doc, otherwise, tags=(), indent='    '):
        """A summary of XML."""
        parts = [('summary', self.text(doc, otherwise))]
        parts += [(f'{kind} name="{name}"' if name else kind, self.text(text, name or kind))
                  for kind, name, text in tags]
        return self.comment([f'<{tag}>{html.escape(" ".join(part), quote=False)}</{tag.split()[0]}>'
                             for tag, part in parts], indent, '/// ', '/// ', '')


class Python(Writer):
    """A module of enums, of answers, which are named tuples, and of functions that make the bytes of options."""
    language, case = 'python', staticmethod(str)

    def doc(self, doc, otherwise, indent='    '):
        text = '\n\n'.join(self.text(doc, otherwise)).replace('\\', '\\\\').replace('"', "'")
        return self.comment(text.split('\n'), indent, '"""', '', '"""')

    def type_name(self, c_name):
        return self.fill('renamed', c_name) or super().type_name(c_name)

    def type_of(self, field):
        if field.kind == 'flags':
            return self.enum_name(field.flags[0].enum)
        if field.kind == 'mask':
            return f'[{self.type_name(field.c_type)}]'
        return self.type_name(field.c_type) if field.kind == 'enum' else self.fill('type', field.kind)

    def enum_name(self, one):
        return (self.type_name(one.c_name) if one.c_name else
                self.fill('renamed', one.prefix) or self.pascal(one.prefix[len('GMM_'):]) + 'Flags')

    def write(self):
        self.out.mkdir(parents=True, exist_ok=True)
        classes = [self.enum(one) for one in self.model.enums if not one.c_name or one.c_name in self.model.types]
        classes += [self.options(struct) if struct.is_options else self.answer(struct) for struct in self.model.values]
        constants = [f'{name[len("GMM_"):]} = {value}' for name, value in self.model.constants.items()]
        (self.out / 'values.py').write_text(self.fill(
            'file', methods=self.methods(',\n'), constants='\n'.join(constants), classes='\n\n'.join(classes).rstrip()))
        (self.out / 'values.i').write_text(''.join(
            f'GMM_HANDLE({name}, HANDLE_{name[len("gmm_"):].upper()})\n' for name in self.model.handles))

    def enum(self, one):
        body = self.doc(one.doc, self.enum_name(one))
        for item in one.items:
            body += f'    {re.sub("^CAN_", "", item.name)} = {item.value}\n'
            body += self.doc(item.doc, '') if item.doc else ''
        return self.fill('enum', name=self.enum_name(one), base='IntEnum' if one.c_name else 'IntFlag',
                         body=body.rstrip())

    def layout(self, struct):
        """The format of a struct for Python's module struct."""
        return ''.join(f'{field.size * max(field.count, 1)}{"x" if field.kind == "skip" else "s"}'
                       if field.count or field.kind == 'skip' else field.code for field in struct.fields)

    def answer(self, struct):
        name, shown = self.type_name(struct.c_name), [field for field in struct.fields if field.kind != 'skip']
        body, kinds = self.doc(struct.doc, name), [self.type_of(field) for field in shown]
        for field, kind in zip(shown, kinds):
            kind = f'tuple{kind[:-1]}, ...]' if field.kind == 'mask' else kind
            body += f'    {field.c_name}: {kind}\n' + self.doc(field.doc, field.c_name)
        return self.fill('answer', name=name, c_name=struct.c_name, body=body, layout=self.layout(struct),
                         kinds=', '.join(kinds), addresses=[each.c_name for each in shown if each.kind == 'address'])

    def options(self, struct):
        """The function that makes the bytes of options, by what _pack() writes for each: form, place, and more."""
        writes = {}
        for field in struct.fields:
            form, more = field.kind if field.kind in ('callback', 'text') else field.code, None
            if form == 'callback':
                more = f'callback_{field.c_type[len("gmm_"):-len("_callback")]}'
            elif field.kind in ('list', 'map', 'ranges'):
                element = self.model.structs.get(field.c_type)
                form, more = 'list', (self.layout(element) if element else 'I', struct.count_of(field).at)
            if field.kind == 'flags':
                flags = field.at
            elif field.kind != 'skip':
                writes[field.c_name] = [(form, field.at, more)]
            if field.applies:
                writes[field.c_name].append(('given', flags, field.applies.value))
            writes.update((each.c_name.lower(), [('flag', field.at, each.item.value)]) for each in field.flags)
        return self.fill('options', name=struct.c_name[len('gmm_'):], size=struct.size, writes=writes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--language', required=True, choices=['java', 'csharp', 'python'])
    parser.add_argument('--include', required=True, type=pathlib.Path)
    parser.add_argument('--out', required=True, type=pathlib.Path)
    parser.add_argument('swig', nargs='*', metavar='SWIG ARGUMENT', help='writes the calls')
    options = parser.parse_args()
    {'java': Java, 'csharp': CSharp, 'python': Python}[options.language](Model(options.include), options.out).write()
    if options.swig:
        paths = [f'-I{path}' for path in (options.out, options.include, HERE)]
        sys.exit(subprocess.run([options.swig[0], f'-{options.language}', '-Wall', '-Werror', '-MD', *paths,
                                 '-outdir', options.out, *options.swig[1:]]).returncode)


if __name__ == '__main__':
    main()
