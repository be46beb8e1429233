# SPDX-License-Identifier: Apache-2.0
"""Writes the values, options, enums and forwarding methods of a language from the C headers.

Usage: generate.py --language java|csharp|python --include FOLDER --out FOLDER [--members FOLDER] [--swig SWIG]
                   [-- ARGUMENT_OF_SWIG...]

The documentation is that of the headers' comments. With arguments for SWIG, SWIG then writes the calls. For
Java and C# FOLDER is emptied first, so that no class of an older interface is left in it, and it gets the classes in
values/. For Python it gets values.py, and values.i for SWIG.

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
 - FOLDER/<Class>.java of --members has the members of a class that are written by hand. C# has partial classes. The
   forwarding methods of Java's class X are in XCalls, which X extends.
"""
import argparse
import collections
import html
import os
import pathlib
import re
import shutil
import string
import subprocess
import sys
import textwrap

# Names that the rules do not give, which the languages have used since their first version.
TYPE_NAMES = {'gmm_tag_info': 'pause_info', 'gmm_stats_info': 'statistics', 'gmm_scope_desc': 'scope',
              'gmm_ipc_legacy_info': 'legacy_handle', 'gmm_lease_request_desc': 'lease_request'}
FIELD_NAMES = {'gmm_context_desc.log': 'logger', 'gmm_lease_desc.floor_bytes': 'floor'}
# Flags that a program passes around are an enum of their own.
EVENTS = 'GMM_WATCH_'
# The interface of a language that stands for a callback. Other callbacks are left to C.
CALLBACKS = {'gmm_log_callback': 'logger', 'gmm_progress_callback': 'progress',
             'gmm_lease_ask_callback': 'lease_handler'}
# Lists and callbacks that a call gets beside the options.
ARGUMENTS = {'gmm_pause_desc.tags', 'gmm_watch_desc.callback'}
# Classes that only the hand-written layers use.
INTERNAL = {'gmm_ipc_fd_info', 'gmm_snapshot_info', 'gmm_pin_desc', 'gmm_ipc_import_desc', 'gmm_ipc_fd_desc',
            'gmm_stream_desc', 'gmm_event_desc'}
# Made of functions, so C and C++ alone have it; and the elements of a list that is a map.
LEFT_OUT = ('gmm_semaphore_', 'gmm_lease_amount')
# The classes of handles that have forwarding methods. A tag is a number of its context, a buffer a block of it.
OWNERS = {f'gmm_{name}': name for name in ('context', 'heap', 'event', 'ticket', 'lease')}
METHOD_NAMES = {f'gmm_{name}': own for name, own in {
    'context_set_decommit': 'set_decommit_after_ms', 'device_query': 'device', 'ipc_configure': 'configure_ipc',
    'ipc_export': 'export_handle', 'event_export': 'export_handle', 'ipc_export_legacy': 'export_legacy',
    'tag_configure': 'update', 'tag_find': 'find_tag', 'tag_set_default': 'set_process_default_tag',
    'backup_configure': 'set_backup', 'backup_reserve': 'prepare_backup', 'backup_query': 'backup_info',
    'backup_discard': 'discard_backup', 'limit_set': 'set_limit', 'stats_query': 'statistics',
    'stream_synchronize': 'synchronize', 'stream_forget': 'forget'}.items()}
BUFFER_NAMES = {'name': 'set_name', 'resume_range': 'resume'}
# Functions that are more than a call in the languages: they own, keep, order, or throw something.
BY_HAND = {f'gmm_{name}' for name in (
    'context_retain context_release ipc_close ipc_export_fd lease_offer lease_return lease_destroy try_free tag_create '
    'tag_push tag_pop ticket_commit ticket_cancel ticket_destroy unpin reset defer_begin defer_end stream_create '
    'stream_destroy event_record event_destroy heap_destroy').split()}
UNITS = {'ms': {'java': 'millis', 'csharp': 'milliseconds', 'python': 'ms'},
         'us': {'java': 'micros', 'csharp': 'microseconds', 'python': 'us'}}
SIZES = {'uint32_t': 4, 'int32_t': 4, 'char': 1, 'uint8_t': 1}  # all others have 8 bytes
NOTICE = 'Written by bindings/swig/generate.py from include/gmm.'


# --- The model: the headers and their comments ---------------------------------------------------------------

Enumerator = collections.namedtuple('Enumerator', 'c_name value doc')
# handle: the type of the first parameter; parameters: (type of C without const, name) of the others.
Function = collections.namedtuple('Function', 'c_name handle parameters doc')


class Enum:
    """c_name: that of its type, or None for flags; prefix: what all enumerators begin with."""

    def __init__(self, c_name, items, doc):
        self.c_name, self.items, self.doc = c_name, items, doc
        common = os.path.commonprefix([item.c_name for item in items])
        self.prefix = common[:common.rfind('_') + 1] if len(items) > 1 else '_'.join(common.split('_')[:2]) + '_'

    def short(self, item):
        return re.sub('^ERROR_' if self.c_name == 'gmm_result' else '^$', '', item.c_name.replace(self.prefix, '', 1))


class Field:
    """kind: what a language makes of it; see Model.kind_of(). flags: (enumerator, name) of those that a program sets by
    themselves. applies: the flag that says that this field applies, or None. code: its number in Python's struct."""

    def __init__(self, c_type, pointer, c_name, count, doc):
        self.c_name, self.c_type, self.pointer, self.count, self.doc = c_name, c_type, pointer, int(count or 0), doc
        self.kind, self.at, self.size, self.flags, self.applies, self.element = 'skip', 0, 0, [], None, None


class Struct:
    def __init__(self, c_name, doc):
        self.c_name, self.fields, self.doc, self.size = c_name, [], doc, 0
        self.is_options = c_name.endswith('_desc')

    def count_of(self, field):
        """The field that counts the elements of a list, or None."""
        return next((each for each in self.fields if each.c_name == field.c_name[:-1] + '_count'), None)


# A declaration, whose documentation (a mark) stands before or behind it.
DECLARATION = re.compile(r'(?:«(\d+)»\s*)?(typedef struct \w+ \{|enum \{|\}[ \w]*;|#define \w+[^\n‹]*'
                         r'|GMM_\w+ = [^,«‹}]*,?|[^;«‹#{}]*;)\s*(?:‹(\d+)›)?')
LEFT_TO_C = re.compile(r'^#(?!define).*|(^#define )?\bGMM_(API|NODISCARD|NOEXCEPT)\b(?(1).*)|^extern "C" \{', re.M)


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
        for struct in self.structs.values():
            self.classify(struct)
        self.values = [struct for struct in self.structs.values() if struct.fields[0].c_name == 'struct_size'
                       and not struct.c_name.startswith(LEFT_OUT)]
        self.types = [enum for enum in self.enums if enum.c_name and not enum.c_name.startswith(LEFT_OUT)]

    def read(self, text):
        docs, struct, items, of_enum = [], None, [], (None, '')

        def keep(match):  # a mark instead of a comment: before the name, or after it
            if not match[1]:
                return ''
            docs.append('\n'.join(re.sub(r'^\s*\* ?', '', line) for line in match[2].strip().split('\n')).strip())
            return f'‹{len(docs) - 1}›' if match[1] == '*<' else f'«{len(docs) - 1}»'

        # Nothing is passed over in silence, should a declaration have a form that the expressions above do not know.
        unread = set(re.findall(r'GMM_API\s+gmm_result\s+(gmm_\w+)(?=\(gmm_\w+ \*)|^ +(GMM_\w+)(?:,| = )', text, re.M))
        text = LEFT_TO_C.sub('', re.sub(r'/\*(\*<?)?(.*?)\*/', keep, text, flags=re.S))
        for before, code, after in DECLARATION.findall(text):
            doc = docs[int(after or before)] if after or before else ''
            opened = re.match(r'(typedef struct|enum|#define) ?(\w*) ?(.*)', code)
            typedef = re.match(r'typedef (struct )?(\w+) (\w+);', code)
            function = re.match(r'\s*gmm_result (gmm_\w+)\((gmm_\w+) \*\w+,?\s*(.*)\)', code, re.S)
            if code[0] == '}':
                self.enums += [Enum(of_enum[0], items, of_enum[1])] if items else []
                struct, items = None, []
            elif code.startswith('GMM_'):
                name, value = code.rstrip(',').split(' = ')
                items.append(Enumerator(name, number(value), doc))
            elif struct:
                declared = re.fullmatch(r'\s*(?:const )?(\w+) ([*(]*)(\w+)(?:\[(\d+)\]|\)\(.*)?;', code, re.S)
                struct.fields.append(Field(*declared.groups(), doc))
            elif code.endswith('{') and opened[2]:
                struct = self.structs[opened[2]] = Struct(opened[2], doc)
            elif code.startswith('#') and number(opened[3]) is not None:
                self.constants[opened[2]] = number(opened[3])
            elif typedef and typedef[1]:
                self.handles.append(typedef[3])
            elif typedef:
                self.typedefs[typedef[3]] = typedef[2]
            elif function:
                parameters = [re.match(r'(?:const )?(.*?) ?(\w+)\W*$', each).groups()
                              for each in re.split(r',\s+', function[3]) if each]
                self.functions.append(Function(function[1], function[2], parameters, doc))
            if code != 'enum {' and not code.startswith('GMM_'):
                of_enum = (typedef[3], doc) if typedef and not typedef[1] else (None, '')
        unread -= {(function.c_name, '') for function in self.functions}
        unread -= {('', item.c_name) for enum in self.enums for item in enum.items}
        if unread:
            raise ValueError(f'the generator does not know the form of {unread}')

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
            all_flags, field.flags = field.flags, []
            for item in all_flags:
                name = re.sub('^(PAUSE|RESUME)_', '', self.flags_of(item).short(item))
                name = f'{name}_ipc' if item.c_name.startswith('GMM_IPC_ROUTE_') else name
                if struct.is_options and name.lower() in names:
                    names[name.lower()].applies = item
                else:
                    field.flags.append((item, name))

    def enum_of(self, c_type):
        return next((enum for enum in self.enums if c_type and enum.c_name == c_type), None)

    def flags_of(self, item):
        """The enum of a flag."""
        return next(enum for enum in self.enums if item in enum.items)

    def kind_of(self, struct, field):
        name, doc, c_type = field.c_name, field.doc, field.c_type
        flags = re.match(r'(GMM_\w+_)\*', doc)
        if name in ('struct_size', 'reserved') or doc.rstrip('.') in ('0', 'must be 0') or '(' in field.pointer:
            return 'skip'
        if flags and flags[1] == EVENTS:
            return 'events' if struct.is_options else 'event'
        if flags:
            named = re.findall(r'GMM_[A-Z_]+[A-Z]\b', doc)
            field.flags = [item for enum in self.enums if enum.c_name is None for item in enum.items
                           if item.c_name.startswith(flags[1]) or item.c_name in named]
            return 'flags'
        if field.pointer:
            field.element = c_type
            return ('text' if c_type == 'char' else 'list' if struct.count_of(field)
                    else 'skip' if c_type in self.handles else 'address')
        if c_type in CALLBACKS or f'{struct.c_name}.{name}' in ARGUMENTS:
            return 'callback'
        if c_type in self.structs or any(each.pointer and struct.count_of(each) is field for each in struct.fields):
            return 'skip'
        if field.count:
            return 'name' if c_type == 'char' else 'bytes'
        if c_type in ('gmm_stream', 'gmm_tag') and struct.is_options:
            return c_type[len('gmm_'):]
        if c_type.endswith('_mask'):
            field.element = c_type[:-len('_mask')]
            return 'mask'
        if re.match(r'1( if|:)', doc) and c_type == 'uint32_t':
            return 'bool'
        return ('address' if c_type == 'gmm_stream' else 'enum' if self.enum_of(c_type) else 'u64' if field.size == 8
                else 'i32' if field.code == 'i' else 'u32')

    def argument_kind(self, c_type, name):
        """The kind of a parameter for a method that forwards; None: the function is more than that."""
        kinds = {'char *': 'text', 'void *': 'address', 'void * out': None, 'uint64_t * bytes': 'out_u64',
                 'gmm_tag * out': 'out_tag', 'gmm_ticket ** out': 'out_ticket', 'gmm_ipc_handle * out': 'out_handle',
                 'gmm_stream': 'stream', 'gmm_tag': 'tag', 'uint32_t': 'u32', 'int32_t': 'i32', 'gmm_device': 'i32',
                 'uint64_t': 'u64', 'uint64_t timeout_ms': None, 'gmm_pause_desc *': 'pause',
                 **{enum.c_name: 'enum' for enum in self.types}}
        struct = self.structs.get(c_type.rstrip(' *'))
        if struct in self.values and not any(f'{struct.c_name}.{field.c_name}' in ARGUMENTS or field.kind == 'callback'
                                             for field in struct.fields):
            return 'options' if struct.is_options else 'answer'
        return kinds.get(f'{c_type} {name}', kinds.get(c_type))

    def forwarding(self):
        """By class: its methods, each a function with the parameters that are left of it, and its name."""
        found = {owner: [] for owner in [*OWNERS.values(), 'tag', 'buffer']}
        for function in self.functions:
            arguments = [(self.argument_kind(*parameter), *parameter) for parameter in function.parameters]
            kinds = [kind for kind, _, _ in arguments]
            if function.handle not in OWNERS or function.c_name in BY_HAND or None in kinds:
                continue
            owner = OWNERS[function.handle]
            if arguments[:1] == [('tag', 'gmm_tag', 'tag')] and function.c_name != 'gmm_tag_set_default':
                owner = 'tag'
            name = METHOD_NAMES.get(function.c_name, re.sub(f'^gmm_({owner}_)?', '', function.c_name))
            name = 'info' if function.c_name == f'gmm_{owner}_query' else name
            found[owner].append((name, function, arguments[owner == 'tag':]))
            if 'pause' in kinds:
                found['tag'].append((name, function, arguments))
            if kinds.count('address') == 1 and kinds[0] == 'address' and function.c_name != 'gmm_free':
                found['buffer'].append((BUFFER_NAMES.get(name, name), function, arguments[1:]))
        return found

    def is_unbounded(self, described):
        """Whether a number may stand for all bits, so that it may be negative in a language without a sign."""
        special = [name for name, value in self.constants.items() if value == 0xffffffffffffffff]
        return any(name in described.doc for name in special) or described.doc.startswith('bit ')


# --- The languages --------------------------------------------------------------------------------------------

class Writer:
    """The common part of the languages. A subclass has the names, tables and templates of one."""

    def __init__(self, model, out, members):
        self.model, self.out, self.members = model, out, members

    def pascal(self, name):
        words = name.lower().strip('_').split('_')
        units = [UNITS.get(word, {}).get(self.language, word) if i else word for i, word in enumerate(words)]
        return ''.join(word.capitalize() for word in units)

    def camel(self, name):
        made = self.pascal(name)
        return made[0].lower() + made[1:]

    def type_name(self, c_name):
        return self.pascal(TYPE_NAMES.get(c_name) or re.sub('_desc$', '_options', c_name[len('gmm_'):]))

    def shown(self, struct):
        return [field for field in struct.fields
                if field.kind != 'skip' and f'{struct.c_name}.{field.c_name}' not in ARGUMENTS]

    def read(self, field):
        """The expression that reads a field of an answer."""
        return self.reads.get(field.kind, self.reads['u32']).format(
            at=field.at, count=field.count, code=field.code, type=self.type_of(field))

    def fill(self, template, **values):
        return string.Template(self.templates[template]).substitute(self.words, **values)

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


class Compiled(Writer):
    """Java and C#: a class a struct, an enum, and methods that forward."""
    shared = {
        'has': '\n$doc    public $bool $has($type value) { return ($value & 1 << $bit) != 0; }\n',
        'answer': '''$doc$access$sealed class $name {
    private $fields fields;

    $internal$name(byte[] from) { fields = Struct.$answer(from, $size); }

    ${internal}static byte[] $bytes_for_c() { return Struct.$for_answer($size); }
$members
    $to_string { return $show_all("$name", $values); }
}
''',
        'options': '''$doc$access$sealed class $name {$members
    ${internal}byte[] $encode($users) {
        Struct to = new Struct($size);
        $puts
        return to.$bytes();
    }

    $to_string { return $show_all("$name", $values); }
}
'''}
    cased = ('answer', 'bytes_for_c', 'for_answer', 'encode', 'bytes', 'has')

    def __init__(self, model, out, members):
        super().__init__(model, out / 'values', members)
        self.out.mkdir(parents=True)
        self.templates = {**self.shared, **self.templates}
        self.words = {**self.words, 'internal': self.internal, 'bool': self.types['bool'],
                      **{word: self.case(word) for word in self.cased}}

    def write(self):
        for enum in [*self.model.types, *(each for each in self.model.enums if each.prefix == EVENTS)]:
            self.save(*self.enum(enum))
        for struct in self.model.values:
            self.save(self.type_name(struct.c_name), self.struct(struct))
        for owner, functions in self.model.forwarding().items():
            methods = ''.join(self.method(owner, *each, is_part) for each in functions for is_part in (False, True)
                              if not is_part or owner == 'buffer' and ('u64', 'uint64_t', 'size') in each[2])
            self.save(f'{self.pascal(owner)}Calls', self.calls(owner, methods))

    def type_name(self, c_name):
        return self.prefix + super().type_name(c_name)

    def type_of(self, field):
        if field.kind == 'callback':
            return self.prefix + self.pascal(CALLBACKS[field.c_type]) if field.c_type in CALLBACKS else None
        return self.type_name(field.c_type) if field.kind == 'enum' else self.types.get(field.kind)

    def name_of(self, struct, field):
        return self.case(FIELD_NAMES.get(f'{struct.c_name}.{field.c_name}', field.c_name))

    def member(self, doc, head, *steps):
        return f'\n{doc}    {head} {{\n' + ''.join(f'        {step};\n' for step in steps if step) + '    }\n'

    def enum(self, enum):
        name, doc, items = self.types['event'], 'Watch events.', [Enumerator(*each) for each in self.no_flag]
        if enum.c_name:
            name, doc, items = self.type_name(enum.c_name), enum.doc, []
        items += [each._replace(c_name=enum.short(each)) for each in enum.items]
        unknown = 'null'
        if enum.c_name == 'gmm_result':
            unknown = 'UNKNOWN'
            items.append(Enumerator(unknown, -2147483648, 'A code of a newer library.'))
        return name, self.fill(
            'enum class', name=name, doc=self.doc(doc, name, indent=''), unknown=unknown,
            attribute='' if enum.c_name else '[Flags]\n',
            items=',\n'.join(self.fill('item', doc=self.doc(each.doc, each.c_name), upper=each.c_name,
                                       pascal=self.pascal(each.c_name), value=each.value) for each in items))

    def struct(self, struct):
        """A class of options or an answer."""
        name, members, shown = self.type_name(struct.c_name), '', []
        for field in self.shown(struct):
            own, value = self.name_of(struct, field), '' if struct.is_options else self.read(field)
            if field.kind != 'flags' or value and field.c_name != 'flags':
                members += self.property(struct, field, own, value)
                shown.append((own, field.kind))
            for item, flag in field.flags:
                members += self.fill('getter' if value else 'flag', name=name, own=self.case(flag),
                                     type=self.types['bool'], doc=self.doc(item.doc, flag),
                                     value=f'({value} & {item.value}) != 0')
                shown.append((self.case(flag), 'bool'))
            if field.kind == 'mask':
                members += self.fill('has', doc=self.doc(f'Whether this one is among the {own}.', ''),
                                     type=self.type_name(field.element), value=value)
        call = '' if struct.is_options else self.call
        users, puts = self.encoded(struct) if struct.is_options else ('', [])
        return self.fill(
            'options' if struct.is_options else 'answer', name=name, members=members, size=struct.size, users=users,
            doc=self.doc(f'{struct.doc}\n\n{self.fluent if struct.is_options else ""}', name, indent=''),
            access=self.internal if struct.c_name in INTERNAL else 'public ', puts='\n        '.join(puts),
            values=', '.join(f'"{own}", {self.show.get(kind, "{own}").format(own=own + call)}' for own, kind in shown))

    def encoded(self, struct):
        """The parameters of a class of options' encode(), and the calls that put its fields where C has them."""
        users, puts = [], []
        for field in [each for each in struct.fields if each.kind != 'skip']:
            own, is_optional = self.name_of(struct, field), bool(field.applies) and field.kind != 'tag'
            value = self.puts.get((field.kind, is_optional), self.puts.get(field.kind, '{own}')).format(
                own=own, type=self.type_of(field), pascal=self.pascal(field.c_name))
            if field.kind == 'callback':
                users.append(f'{self.types["address"]} {self.camel(field.c_name)}User')
                value = f'"{field.c_type}", {self.camel(field.c_name)}User'
            elif field.kind == 'list':
                is_argument = f'{struct.c_name}.{field.c_name}' in ARGUMENTS
                users += [f'{self.types["tag"]}[] {field.c_name}'] if is_argument else []
                value = f'{struct.count_of(field).at}, {field.c_name if is_argument else own}'
            elif field.kind == 'flags':
                tests = [(item, self.case(flag)) for item, flag in field.flags]
                tests += [(each.applies, f'{self.name_of(struct, each)} != null')
                          for each in struct.fields if each.applies]
                value = ' | '.join(f'({test} ? {item.value} : 0)' for item, test in tests)
            puts.append(f'to.{self.case("put")}({field.at}, {value});')
        return ', '.join(users), puts

    def property(self, struct, field, own, value):
        """A property. An element of a list is a number, or a number and bytes: then the list is a map."""
        own_type, enum = self.type_of(field), self.model.enum_of(field.c_type)
        element, number, size = self.model.structs.get(field.element), None, None
        if element:
            number, size = [self.camel(each.c_name) for each in element.fields if each.kind != 'skip']
        kind = ('map' if element else 'optional' if field.applies and field.kind != 'tag' else
                'size' if field.kind == 'u64' and not self.model.is_unbounded(field) else field.kind)
        template = 'getter' if value else f'of {kind}' if f'of {kind}' in self.templates else 'property'
        return self.fill(template, name=self.type_name(struct.c_name), own=own, type=own_type, value=value,
                         number=number, bytes=size, doc=self.doc(field.doc, field.c_name),
                         single=self.case(field.c_name[:-1]),
                         zero=enum and next((enum.short(item) for item in enum.items if item.value == 0), None),
                         boxed='Integer' if own_type == 'int' else own_type, camel=own[0].lower() + own[1:])

    def method(self, owner, name, function, arguments, is_part):
        """A method that forwards; is_part: the form for a part of a buffer."""
        name = self.case(self.method_names.get(name, name))
        passed, parameters, steps, stream, result = [*self.first.get(owner, self.first[None])], [], [], '', None
        if is_part:
            passed[-1] = self.part
            parameters = [(self.types['u64'], 'offset', ''), (self.types['u64'], 'length', '')]
            steps.append(f'{self.case("check")}(offset, length)')
        for kind, c_type, c_name in arguments:
            own, c_type = 'options' if c_name == 'desc' else self.camel(c_name), c_type.rstrip(' *')
            own_type = self.types.get(kind) or self.type_name(c_type)
            if kind in self.outs:
                result = [each.format(type=own_type) for each in self.outs[kind]]
                passed.append(result[2])
            elif owner == 'buffer' and c_name == 'size':
                passed.append(self.casts.get('u64', '{own}').format(own='length' if is_part else self.size))
            else:
                parameters.append((own_type, own, c_name))
                passed.append(self.casts.get(kind, '{own}').format(own=own))
                if kind == 'u64':
                    steps.append(self.check[self.model.is_unbounded(function)].format(own=own))
                if kind == 'stream':
                    stream = own
                elif kind == 'options' and any(each.kind == 'stream' for each in self.model.structs[c_type].fields):
                    stream = self.stream_of.format(own=own)
        text, described = self.sections(function.doc)
        kind, declare, _, value = result or ('void', '', '', '')
        less = ''
        if arguments[:1] and arguments[0][0] == 'pause':  # of the tag, or of tags that follow the options
            tags = [(self.all_tags, 'tags', 'tags')] if owner == 'context' else []
            parameters, described = parameters + tags, {'tags': 'none: every tag', 'bytes': described.get('bytes')}
            steps = [self.pauses[owner].format(name=name, c_name=function.c_name, runs=self.runs[not value])]
            less = self.member(self.doc('Does the same as the other method, with no options.', ''),
                               f'public {kind} {name}({self.all_tags + " tags" if tags else ""})',
                               f'return {name}(new {parameters[0][0]}(){", tags" if tags else ""})')
        else:
            steps += [each.format(
                open=self.opens.get(owner, self.opens[None]), stream=self.on.format(stream) if stream else '',
                call=f'Native.{function.c_name}({", ".join(passed)})', close='))' if stream else ')', declare=declare,
                end=value and f'return {value}', declared=declare and declare + '; ',
                ended=value and f'; return {value}') for each in self.body]
        doc = [('param', own, described.get(c_name, '')) for _, own, c_name in parameters]
        doc += [('returns', None, described['bytes'])] if result and described.get('bytes') else []
        optional = 0
        while optional < len(parameters) and described.get(parameters[-1 - optional][2], '').startswith('null:'):
            optional += 1
        return self.overloads(self.doc(text, name, doc), kind, name, parameters, optional, steps) + less


def setter(declared, parameter='$type value', code='$own = value', method='$own'):
    """For Java: a field of options, and the method that sets it."""
    return f'\n    {declared};\n\n$doc    public $name {method}({parameter}) {{ {code}; return this; }}\n'


class Java(Compiled):
    language, prefix, internal = 'java', '', ''
    case = Writer.camel
    types = {'bool': 'boolean', 'u32': 'int', 'i32': 'int', 'u64': 'long', 'address': 'long', 'name': 'String',
             'text': 'String', 'bytes': 'byte[]', 'mask': 'int', 'flags': 'int', 'events': 'int', 'tag': 'Tag',
             'stream': 'Stream', 'ticket': 'Ticket', 'event': 'WatchEvent'}
    reads = {'u32': 'fields.getInt({at})', 'u64': 'fields.getLong({at})', 'address': 'fields.getLong({at})',
             'bool': 'fields.getInt({at}) != 0', 'enum': '{type}.of(fields.getInt({at}))',
             'event': '{type}.of(fields.getInt({at}))', 'name': 'Struct.text(fields, {at}, {count})',
             'bytes': 'Struct.bytes(fields, {at}, {count})'}
    puts = {'enum': '{own}.value()', 'events': '{own} != 0 ? {own} : default{pascal}()',
            ('enum', True): '{own} == null ? 0 : {own}.value()', ('i32', True): '{own} == null ? 0 : {own}'}
    words = {'sealed': 'final', 'fields': 'final java.nio.ByteBuffer', 'show_all': 'Struct.show',
             'bit': 'value.value()', 'to_string': '@Override\n    public String toString()'}
    show, call = {'address': 'Struct.hex({own})', 'bytes': 'Struct.hex({own})'}, '()'
    fluent = 'Each method changes this object and returns it.'
    no_flag, method_names = [], {}
    # How a method of a class calls C with its handle, and the arguments that come first.
    opens = {'tag': 'context.run(self -> ', 'buffer': 'run((context, self) -> ', None: 'run(self -> '}
    first = {'tag': ['self', 'number'], 'buffer': ['context', 'self'], None: ['self']}
    on, body = '{}.run(on -> ', ['{declare}', '{open}{stream}{call}{close}', '{end}']
    part, size, all_tags, runs = 'self + offset', 'size', 'Tag...', ('ProgressCall.run', 'Ticket.start')
    pauses = {'context': 'return {runs}(handle, Native::{c_name}, options, tags)',
              'tag': 'return context.{name}(options, (Tag) this)'}
    casts = {'options': '{own} == null ? null : {own}.encode()', 'tag': '{own}.number()', 'enum': '{own}.value()',
             'stream': 'on'}
    check = ['Text.checkSize("{own}", {own})', 'Text.checkSizeOrAll("{own}", {own})']
    stream_of = '({own} == null ? Stream.DEFAULT : {own}.stream)'
    # The type of the answer, how it is declared and passed, and its value.
    outs = {'out_u64': ('long', 'long[] out = new long[1]', 'out', 'out[0]'), 'out_ticket': ('Ticket', '', '', ''),
            'out_tag': ('Tag', 'int[] out = new int[1]', 'out', 'new Tag((Context) this, out[0])'),
            'out_handle': ('byte[]', 'byte[] out = new byte[Context.IPC_HANDLE_SIZE]', 'out', 'out'),
            'answer': ('{type}', 'byte[] out = {type}.bytesForC()', 'out', 'new {type}(out)')}
    templates = {
        'getter': '\n$doc    public $type $own() { return $value; }\n',
        'flag': setter('boolean $own', '', '$own = true'),
        'property': setter('$type $own'),
        'of list': setter('final java.util.List<Integer> $own = new java.util.ArrayList<>()', 'int value',
                          '$own.add(value)', '$single'),
        'of map': setter('final java.util.Map<Integer, Long> $own = new java.util.TreeMap<>()',
                         'int $number, long $bytes', '$own.put($number, Text.checkSize("$bytes", $bytes))', '$single'),
        'of events': setter('int $own', 'WatchEvent... value', '$own = java.util.Arrays.stream(value)'
                            '.mapToInt(each -> each.value()).reduce(0, (a, b) -> a | b)'),
        'of optional': setter('$boxed $own'),
        'of enum': setter('$type $own = $type.$zero'),
        'of stream': setter('Stream $own = Stream.DEFAULT'),
        'of size': setter('long $own', 'long value', '$own = Text.checkSize("$own", value)'),
        'item': '$doc    $upper($value)',
        'enum class': '''${doc}public enum $name {
$items;

    private final int value;

    $name(int value) { this.value = value; }

    /** The number in the C interface. */
    public int value() { return value; }

    /** The constant with that number; null: it is of a newer library. */
    static $name of(int value) {
        return java.util.Arrays.stream(values()).filter(each -> each.value == value).findFirst().orElse($unknown);
    }
}
'''}
    # The base of a class of forwarding methods: its name, and the parameters of its constructor.
    bases = {'tag': ('TagNumber', 'Context context, int number'),
             'buffer': ('NativeBlock', 'Handle handle, Handle context, long size, boolean isImport'),
             None: ('NativeObject', 'Handle handle')}

    def calls(self, owner, methods):
        name, (base, parameters) = f'{self.pascal(owner)}Calls', self.bases.get(owner, self.bases[None])
        passed = ', '.join(each.split()[1] for each in parameters.split(', '))
        return (f'/** The methods of a {owner} that only forward to the C interface. */\nabstract class {name} extends '
                f'{base} {{\n    {name}({parameters}) {{ super({passed}); }}\n{methods}}}\n')

    def doc(self, doc, otherwise, tags=(), indent='    '):
        """A javadoc comment."""
        made = [re.sub(r'`([^`]*)`', r'{@code \1}', part.replace('&', '&amp;').replace('<', '&lt;')) for part in [
            *self.text(doc, otherwise),
            *(('@return ' if kind == 'returns' else f'@param {name} ') + ' '.join(self.text(text, kind))
              for kind, name, text in tags if text)]]
        made = [('<p>' if i and part[0] != '@' else '') + part for i, part in enumerate(made)]
        return self.comment(made, indent, '/** ', ' * ', ' */')

    def save(self, name, body):
        hand = self.members / f'{name}.java' if self.members else None
        if hand and hand.exists():
            body = body.rstrip()[:-1] + '\n' + hand.read_text().split('*/\n', 1)[1].strip('\n') + '\n}\n'
        (self.out / f'{name}.java').write_text(
            f'/* SPDX-License-Identifier: Apache-2.0 */\n/* {NOTICE} */\npackage io.gmm;\n\n{body}')

    def overloads(self, doc, kind, name, parameters, optional, steps):
        """The method, and one without each of the last parameters that may be null."""
        made = ''
        for left in range(len(parameters), len(parameters) - optional - 1, -1):
            taken = ', '.join(f'{each} {own}' for each, own, _ in parameters[:left])
            made += self.member(doc, f'public {kind} {name}({taken})', *steps)
            if left:
                types = ', '.join(each for each, _, _ in parameters[:left])
                doc = self.doc(f'Does the same as {{@link #{name}({types})}} with null.', '')
                given = ', '.join([own for _, own, _ in parameters[:left - 1]] + ['null'])
                steps = [f'{"return " if kind != "void" else ""}{name}({given})']
        return made


class CSharp(Compiled):
    language, prefix, internal = 'csharp', 'Gmm', 'internal '
    case = Writer.pascal
    types = {'bool': 'bool', 'u32': 'int', 'i32': 'int', 'u64': 'long', 'address': 'IntPtr', 'name': 'string',
             'text': 'string', 'bytes': 'byte[]', 'mask': 'int', 'flags': 'int', 'tag': 'GmmTag', 'stream': 'GmmStream',
             'ticket': 'GmmTicket', 'event': 'GmmWatchEvents', 'events': 'GmmWatchEvents'}
    reads = {'u32': 'fields.Int({at})', 'u64': 'fields.Long({at})', 'address': 'fields.Address({at})',
             'bool': 'fields.Int({at}) != 0', 'enum': '({type})fields.Int({at})', 'event': '({type})fields.Int({at})',
             'name': 'fields.Text({at}, {count})', 'bytes': 'fields.Bytes({at}, {count})'}
    puts = {'enum': '(int){own}', ('enum', True): '(int)({own} ?? 0)', ('i32', True): '{own} ?? 0',
            'address': '(long){own}', 'events': '(int)({own} == {type}.None ? Default{own} : {own})'}
    words = {'sealed': 'sealed partial', 'fields': 'readonly Struct', 'show_all': 'Show.All', 'bit': '(int)value',
             'to_string': '/// <inheritdoc/>\n    public override string ToString()'}
    show, call, fluent = {}, '', ''
    no_flag = [('NONE', 0, 'In options it means all that they concern.')]
    method_names = {'export_handle': 'export'}
    opens = {'tag': 'new Use(context.handle)', 'buffer': 'Using()', None: 'new Use(handle)'}
    first = {'tag': ['self.Address', '(uint)Number'], 'buffer': ['context.DangerousGetHandle()', 'self.Address'],
             None: ['self.Address']}
    on = 'using (Use on = new Use({})) '
    body = ['using (Use self = {open}) {stream}{{ {declared}{call}{ended}; }}']
    part, size, all_tags = '(IntPtr)((long)self.Address + offset)', 'Size', 'params GmmTag[]'
    runs = ('ProgressCall.Run', 'new GmmTicket')
    pauses = {'context': 'return {runs}(handle, Native.{c_name}, options, tags)',
              'tag': 'return context.{name}(options, this)'}
    casts = {'options': '{own}?.Encode()', 'tag': '(uint){own}.Number', 'enum': '(uint){own}', 'stream': 'on.Address',
             'u64': '(ulong){own}', 'u32': '(uint){own}'}
    check = ['Show.CheckSize("{own}", {own})', 'Show.CheckSize("{own}", {own}, true)']
    stream_of = '{own}?.Stream'
    outs = {'out_u64': ('long', '', 'out ulong returned', '(long)returned'), 'out_ticket': ('GmmTicket', '', '', ''),
            'out_tag': ('GmmTag', '', 'out uint tag', 'new GmmTag(this, tag)'),
            'out_handle': ('byte[]', 'byte[] bytes = new byte[GmmContext.IpcHandleSize]', 'bytes', 'bytes'),
            'answer': ('{type}', 'byte[] info = {type}.BytesForC()', 'info', 'new {type}(info)')}
    templates = {
        'getter': '\n$doc    public $type $own => $value;\n',
        'flag': '\n$doc    public bool $own { get; set; }\n',
        'property': '\n$doc    public $type $own { get; set; }\n',
        'of list': '\n$doc    public IList<int> $own { get; } = new List<int>();\n',
        'of map': '\n$doc    public IDictionary<int, long> $own { get; } = new Dictionary<int, long>();\n',
        'of optional': '\n$doc    public $type? $own { get; set; }\n',
        'of size': '\n    private long $camel;\n\n$doc    public long $own {\n        get => $camel;\n'
                   '        set => $camel = Show.CheckSize("$own", value);\n    }\n',
        'item': '$doc    $pascal = $value',
        'enum class': '${doc}${attribute}public enum $name {\n$items\n}\n'}
    made = ''

    def doc(self, doc, otherwise, tags=(), indent='    '):
        """A summary of XML."""
        parts = [('summary', self.text(doc, otherwise))]
        parts += [(f'{kind} name="{name}"' if name else kind, self.text(text, name or kind))
                  for kind, name, text in tags]
        return self.comment([f'<{tag}>{html.escape(" ".join(part), quote=False)}</{tag.split()[0]}>'
                             for tag, part in parts], indent, '/// ', '/// ', '')

    def write(self):
        super().write()
        (self.out / 'Values.cs').write_text(
            f'/* SPDX-License-Identifier: Apache-2.0 */\n/* {NOTICE} */\nusing System;\n'
            f'using System.Collections.Generic;\n\nnamespace Gmm {{\n{self.made}}}\n')

    def save(self, name, body):
        self.made += '\n' + body

    def calls(self, owner, methods):
        return f'public sealed partial class Gmm{self.pascal(owner)} {{{methods}}}\n'

    def overloads(self, doc, kind, name, parameters, optional, steps):
        taken = ', '.join(f'{each} {own}' + (' = null' if i >= len(parameters) - optional else '')
                          for i, (each, own, _) in enumerate(parameters))
        return self.member(doc, f'public {kind} {name}({taken})', *steps)


class Python(Writer):
    """A module of enums and of answers, which are named tuples; and for SWIG, the fields of options in C."""
    language = 'python'
    names = {'gmm_tag_info': 'TagInfo', 'gmm_oom_info': 'OutOfMemoryInfo', 'GMM_DEVICE_': 'Capability',
             'GMM_IPC_ROUTE_': 'IpcRoute', 'GMM_WATCH_': 'WatchEvent', 'GMM_': 'PauseFlags'}
    types = {'bool': 'bool', 'name': 'str', 'bytes': 'bytes', 'event': 'WatchEvent'}
    number, text_of = "struct.unpack_from('{code}', data, {at})[0]", "struct.unpack_from('{count}s', data, {at})[0]"
    reads = {'u32': number, 'bool': f'{number} != 0', 'bytes': text_of,
             'name': text_of + ".partition(b'\\0')[0].decode()",
             **dict.fromkeys(('enum', 'event', 'flags'), f'_known({{type}}, {number})'),
             'mask': f'tuple(_known({{type}}, bit) for bit in range(32) if {number} >> bit & 1)'}
    def doc(self, doc, otherwise, indent='    '):
        text = '\n\n'.join(self.text(doc, otherwise)).replace('\\', '\\\\').replace('"', "'")
        return self.comment(text.split('\n'), indent, '"""', '', '"""')

    def type_name(self, c_name):
        return self.names.get(c_name) or super().type_name(c_name)

    def type_of(self, field):
        if field.kind == 'flags':
            return self.enum_name(self.model.flags_of(field.flags[0][0]))
        return (self.type_name(field.element or field.c_type) if field.kind in ('enum', 'mask')
                else self.types.get(field.kind, 'int'))

    def enum_name(self, one):
        return (self.type_name(one.c_name) if one.c_name else
                self.names.get(one.prefix) or self.pascal(one.prefix[len('GMM_'):]) + 'Flags')

    def write(self):
        self.out.mkdir(parents=True, exist_ok=True)
        made = ['# SPDX-License-Identifier: Apache-2.0\n"""The answers, enums and constants of the C interface.\n\n'
                f'{NOTICE}\n"""\nfrom __future__ import annotations\n\nimport enum\nimport struct\n'
                'from typing import NamedTuple\n\n'
                + ''.join(f'{name[len("GMM_"):]} = {value}\n' for name, value in self.model.constants.items()),
                'def _known(kind, value: int):\n    """The enumerator; a number of a newer library stays a number."""\n'
                '    try:\n        return kind(value)\n    except ValueError:\n        return value\n',
                'def _text(answer, addresses):\n    """Addresses in hexadecimal, and words for no limit."""\n'
                '    shown = (hex(value) if name in addresses else "no limit" if value == NO_LIMIT else repr(value)\n'
                '             for name, value in zip(answer._fields, answer))\n'
                '    return f"{type(answer).__name__}({\', \'.join(map(\'=\'.join, zip(answer._fields, shown)))})"\n']
        made += [self.enum(one) for one in self.model.enums if not one.c_name or one in self.model.types]
        made += [self.answer(struct) for struct in self.model.values if not struct.is_options]
        (self.out / 'values.py').write_text('\n\n'.join(made))
        (self.out / 'values.i').write_text(f'/* {NOTICE} */\n' + self.typemaps())

    def typemaps(self):
        """For SWIG: the handles and structs, with the tables by which fields.c reads options."""
        made = ''.join(f'GMM_HANDLE({name}, HANDLE_{name[len("gmm_"):].upper()})\n' for name in self.model.handles)
        for struct in self.model.structs.values():
            if struct in self.model.values and struct.is_options:
                elements = [self.model.structs.get(field.c_type) for field in struct.fields if field.pointer]
                made += ''.join(map(self.table, [*filter(None, elements), struct])) + f'GMM_OPTIONS({struct.c_name})\n'
            else:
                is_answer = struct in self.model.values
                made += f'GMM_ANSWER({struct.c_name})\n' if is_answer else f'%ignore {struct.c_name};\n'
        return made

    def table(self, struct):
        rows = ''
        for field in struct.fields:
            kind, more = field.code, ''
            callback, count = re.fullmatch(r'gmm_(\w+)_callback', field.c_type), struct.count_of(field)
            if callback:
                kind, more = 'C', f', .callback = (void (*)(void))callback_{callback[1]}'
            elif field.pointer and count:
                element = f'&{field.c_type}_struct' if field.c_type in self.model.structs else 'NULL'
                kind, more = 'L', f', .count_at = {count.at}, .element = {element}'
            elif field.pointer:
                kind = 's' if field.c_type == 'char' else 'P'
            elif field.c_type in self.model.structs or field.c_name in ('struct_size', 'reserved'):
                continue  # a host allocator, which stays in C
            rows += f'    {{"{field.c_name}", \'{kind}\', {field.at}{more}}},\n'
        has_size = int(struct in self.model.values)
        return (f'%{{\nstatic const StructType {struct.c_name}_struct = {{sizeof({struct.c_name}), {has_size}, '
                f'(const StructField[]){{\n{rows}    {{NULL}}}}}};\n%}}\n')

    def enum(self, one):
        body = f'class {self.enum_name(one)}(enum.{"IntEnum" if one.c_name else "IntFlag"}):\n'
        body += self.doc(one.doc, self.enum_name(one))
        for item in one.items:
            body += f'    {re.sub("^CAN_", "", one.short(item))} = {item.value}\n'
            body += self.doc(item.doc, '') if item.doc else ''
        return body

    def answer(self, struct):
        name, fields = self.type_name(struct.c_name), ''
        values = ',\n            '.join(map(self.read, self.shown(struct)))
        for field in self.shown(struct):
            kind = f'tuple[{self.type_of(field)}, ...]' if field.kind == 'mask' else self.type_of(field)
            fields += f'    {field.c_name}: {kind}\n' + self.doc(field.doc, field.c_name)
        addresses = [field.c_name for field in self.shown(struct) if field.kind == 'address']
        return (f'class {name}(NamedTuple):\n' + self.doc(struct.doc, name) + fields
                + f'\n    @classmethod\n    def unpack(cls, data: bytes) -> {name}:\n'
                f'        """From the bytes of a {struct.c_name}; what an older library lacks is 0."""\n'
                f'        data = bytes(data[:{struct.size}]).ljust({struct.size}, b\'\\0\')\n'
                f'        return cls(\n            {values})\n'
                f'\n    def __repr__(self) -> str:\n        return _text(self, {addresses})\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--language', required=True, choices=['java', 'csharp', 'python'])
    for name in ('--include', '--out', '--members'):
        parser.add_argument(name, type=pathlib.Path, required=name in ('--include', '--out'))
    parser.add_argument('--swig', default='swig')
    parser.add_argument('rest', nargs='*', metavar='ARGUMENT_OF_SWIG')
    options = parser.parse_args()
    if options.language != 'python':
        shutil.rmtree(options.out, ignore_errors=True)
    writer = {'java': Java, 'csharp': CSharp, 'python': Python}[options.language](
        Model(options.include), options.out, options.members)
    writer.write()
    if options.rest:
        paths = [f'-I{path}' for path in (options.out, options.include, pathlib.Path(__file__).parent)]
        sys.exit(subprocess.run([options.swig, f'-{options.language}', '-Wall', '-Werror', '-MD', *paths,
                                 '-outdir', str(options.out), *options.rest]).returncode)


if __name__ == '__main__':
    main()
